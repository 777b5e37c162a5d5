/* SPDX-License-Identifier: Apache-2.0 */
/*
 * synthetic.h - a stand-in for a model, for machines that cannot fetch one.
 *
 * Like a model: K and V of a token depend on that token and on every byte of
 * KV before it, the next token depends on all of them, prefill costs seconds,
 * and the same input always gives the same bits.  Unlike a model it has nothing
 * to say.
 */
#ifndef KV_TOOLS_DEMO_SYNTHETIC_H
#define KV_TOOLS_DEMO_SYNTHETIC_H

#include "tools/demo/engine.h"

int kv_synthetic_open(struct kv_engine **ret_engine);

#endif
