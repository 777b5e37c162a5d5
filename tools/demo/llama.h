/* SPDX-License-Identifier: Apache-2.0 */
/*
 * llama.h - SmolLM2-135M-Instruct by llama.cpp's library.
 */
#ifndef KV_TOOLS_DEMO_LLAMA_H
#define KV_TOOLS_DEMO_LLAMA_H

#include "tools/demo/engine.h"

/*
 * Load the library and the model of the two unpacked wheels below @dir.
 * -ENOENT: something is missing there; -ENOTSUP: the library is another build
 * than the one whose structures are declared here; -EIO: it refuses the model.
 */
int kv_llama_open(const char *dir, struct kv_engine **ret_engine);

#endif
