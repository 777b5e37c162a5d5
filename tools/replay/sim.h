/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim.h - a trace against a policy and a capacity.
 *
 * How a hit is counted: a request's blocks are looked up from its head, and
 * those count that are resident without a gap.  Then all its blocks are used,
 * from the tail; it keeps them from being evicted meanwhile.  If it has more
 * blocks than there is room, only its head stays.  Nothing is left out as
 * warm-up.
 */
#ifndef KV_TOOLS_REPLAY_SIM_H
#define KV_TOOLS_REPLAY_SIM_H

#include <stdbool.h>

#include "tools/replay/trace.h"

#define KV_REPLAY_NONE UINT32_MAX

/* A simulation as a policy sees it. */
struct kv_sim {
	uint32_t unique, capacity;
	uint32_t used;
	const bool *resident;
	const uint32_t *asked; /* by block: the last request that has it */
	uint32_t request;      /* the one under way, from 1 */
};

static inline bool kv_sim_pinned(const struct kv_sim *sim, uint32_t block)
{
	return sim->asked[block] == sim->request;
}

/* A policy; its state is made for one simulation. */
struct kv_replay_policy {
	const char *name;
	void *(*begin)(const struct kv_sim *sim,
		       const char *name); /* or NULL */
	void (*end)(void *state);
	/* @position: in its request. */
	void (*touch)(void *state, uint32_t block, uint32_t position);
	/* @parent: KV_REPLAY_NONE: of the head. */
	void (*insert)(void *state, uint32_t block, uint32_t position,
		       uint32_t parent);
	/* The request is over; called for its blocks from the tail, if what is
	 * there is used first and the rest put in from the head, as the daemon
	 * does; NULL: all are used or put in from the tail. */
	void (*over)(void *state, uint32_t block);
	/* For @block to come in: one that is not pinned, which is forgotten;
	 * KV_REPLAY_NONE. */
	uint32_t (*victim)(void *state, uint32_t block);
};

extern const struct kv_replay_policy kv_replay_daemon; /* by name */
extern const struct kv_replay_policy kv_replay_arc, kv_replay_s3fifo,
	kv_replay_sieve;

/* The names of all policies, the daemon's first; NULL behind the last. */
const char *kv_replay_name(unsigned i);

/* @step, if not NULL, is called now and then with the part that is done.
 * -ENOMEM, -EINVAL: no such policy. */
int kv_replay_run(const struct kv_trace *trace, const char *policy,
		  uint32_t capacity, void (*step)(double part),
		  uint64_t *ret_hits);

/* The most that any policy could reach that knew the future. */
int kv_replay_bound(const struct kv_trace *trace, uint32_t capacity,
		    void (*step)(double part), uint64_t *ret_hits);

#endif
