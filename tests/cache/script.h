/* SPDX-License-Identifier: Apache-2.0 */
/*
 * script.h - save, read and remove blocks of a small store while a fault is
 * injected; and run many such scripts at a time, each in a process of its own.
 *
 * Each script checks that a read gives the saved bytes or is a miss, that after
 * a restart all durable blocks are there and no removed ones, and that nothing
 * leaks.
 */
#ifndef KV_TESTS_CACHE_SCRIPT_H
#define KV_TESTS_CACHE_SCRIPT_H

#include <sys/wait.h>

#include "cache/ssd/ssd.h"
#include "tests/cache/small_store.h"

#define BLOCKS 12
#define AT_ONCE 16 /* number of child processes at a time; they mostly wait */

struct script {
	struct small s;
	bool saved[BLOCKS], durable[BLOCKS], removed[BLOCKS], gone[BLOCKS];
	/* true: blocks may be lost, because the disk returned other bytes than
	 * were written to it */
	bool may_lose;
};

static inline void script_save(struct script *t, unsigned from, unsigned to)
{
	for (unsigned i = from; i < to; i++)
		t->saved[i] = small_save(&t->s, i) == 0;
}

static inline void script_sync(struct script *t)
{
	if (kv_space_sync(t->s.cache, t->s.space) < 0)
		return;
	for (unsigned i = 0; i < BLOCKS; i++) {
		t->durable[i] |= t->saved[i] && !t->removed[i];
		t->gone[i] |= t->removed[i];
	}
}

static inline void script_remove(struct script *t, unsigned i)
{
	if (small_remove_block(&t->s, i) == 0) {
		t->removed[i] = true;
		t->durable[i] = false;
	}
}

static inline void script_fetch_all(struct script *t)
{
	const uint64_t room = KV_PAGE + kv_round_up(BYTES, KV_PAGE);

	for (unsigned i = 0; i < BLOCKS; i++) {
		uint8_t *data = kv_pages_new(room);
		struct kv_block *block = small_get(&t->s, i);

		if (block) {
			kv_block_fetch(t->s.cache, block, &data, room);
			kv_block_put(t->s.cache, block);
		}
		kv_pages_free(data, room);
	}
}

static inline void script_touch(struct script *t, unsigned i)
{
	struct kv_block *block = small_get(&t->s, i);

	if (!block)
		return;
	kv_block_set_mtime(t->s.cache, block, 123);
	kv_block_pin(t->s.cache, block, true);
	kv_block_put(t->s.cache, block);
}

static inline void script_steps(struct script *t)
{
	script_save(t, 0, 6);
	script_sync(t);
	for (unsigned i = 0; i < 5; i++)
		small_demote(&t->s, i);
	small_acquire(&t->s, 0, 6, BYTES, NULL);
	for (unsigned i = 0; i < 4; i++)
		small_demote(&t->s, i);
	for (unsigned i = 0; i < 6; i++)
		small_view(&t->s, i, BYTES);
	script_remove(t, 1);
	script_remove(t, 2);
	script_sync(t);
	script_touch(t, 3);
	script_save(t, 6, 9);
	script_sync(t);
	script_fetch_all(t);
}

/* Check that saves and reads work again after the fault, without a restart. */
static inline void script_recovers(struct script *t)
{
	const uint64_t until = kv_now_ns() + 60000000000ull;
	int r = -EIO;

	while (r < 0 && kv_now_ns() < until) {
		r = kv_space_sync(t->s.cache, t->s.space);
		if (r < 0 || small_stats(&t->s).ssd_degraded) {
			usleep(5000);
			r = -EIO;
		}
	}
	must(r == 0);
	must(small_save(&t->s, 9) == 0);
	t->saved[9] = true;
	/* A sync may report an earlier failure of a write first. */
	while (!t->durable[9] && kv_now_ns() < until)
		script_sync(t);
	must(t->durable[9]);
	while (small_busy(&t->s))
		usleep(1000);
	script_sync(t);
	small_check(&t->s);
}

static inline void script_verify(struct script *t)
{
	for (unsigned i = 0; i < BLOCKS; i++) {
		int r = small_view(&t->s, i, BYTES);

		if (t->durable[i] && r < 0 && !t->may_lose)
			fprintf(stderr, "block %u: %s\n", i, strerror(-r));
		must(!t->durable[i] || r == 0 || t->may_lose);
		must(!t->gone[i] || r == -ENOENT);
	}
}

static inline void script_end(struct script *t)
{
	script_verify(t);
	must(small_close(&t->s) == 0);
	small_must_open(&t->s);
	script_verify(t);
	/* Wait until index records without a segment file are deleted. */
	while (small_busy(&t->s))
		usleep(1000);
	small_check(&t->s);
	must(small_close(&t->s) == 0);
	free(t->s.why);
	small_remove(&t->s);
}

/* ---- many scripts at a time, each in a child process ---- */

struct batch {
	unsigned running, runs, failures;
	struct {
		pid_t pid;
		char name[64];
	} children[AT_ONCE];
};

static inline void batch_wait_one(struct batch *batch)
{
	int status;
	pid_t pid = wait(&status);

	for (unsigned i = 0; i < AT_ONCE; i++) {
		if (batch->children[i].pid != pid)
			continue;
		batch->children[i].pid = 0;
		batch->running--;
		if (status == 0)
			return;
		batch->failures++;
		fprintf(stderr, "%s: status %x\n", batch->children[i].name,
			status);
	}
}

/* Fork a child, but wait first while AT_ONCE children run.  Return true in the
 * child. */
static inline bool batch_fork(struct batch *batch, const char *what, unsigned n)
{
	unsigned at = 0;

	while (batch->running == AT_ONCE)
		batch_wait_one(batch);
	while (batch->children[at].pid)
		at++;
	fflush(NULL);
	batch->children[at].pid = fork();
	must(batch->children[at].pid >= 0);
	if (batch->children[at].pid == 0) {
		alarm(300);
		return true;
	}
	snprintf(batch->children[at].name, sizeof(batch->children[at].name),
		 "%s at %u", what, n);
	batch->running++;
	batch->runs++;
	return false;
}

static inline void batch_end(struct batch *batch)
{
	while (batch->running)
		batch_wait_one(batch);
	assert_int_equal(batch->failures, 0);
}

#endif
