/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steps.h - what one engine process does, from its start to its end.
 */
#ifndef KV_TOOLS_DEMO_STEPS_H
#define KV_TOOLS_DEMO_STEPS_H

#include "tools/demo/engine.h"

struct kv_setting {
	const char *mount, *work; /* the kvfs mount; a directory for notes */
	const char *text, *other; /* files */
	long blocks;		  /* that the prompt must match */
};

/*
 * Prefill the text, save its blocks until durable, generate, and keep all of
 * it below @work as the reference for the other steps.
 */
int kv_step_save(struct kv_engine *engine, const struct kv_setting *setting);

/*
 * Match exactly @blocks of the text, load them, compute the rest, generate:
 * every byte, token and logit is the reference's.  The rest is saved again.
 */
int kv_step_load(struct kv_engine *engine, const struct kv_setting *setting);

/*
 * The same for a prompt that begins as the text does and goes on with the
 * other: it matches @blocks and generates what it does without kvfs.
 */
int kv_step_share(struct kv_engine *engine, const struct kv_setting *setting);

#endif
