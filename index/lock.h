/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lock.h - STORE/lock: who has the store.
 *
 * A daemon that has begun to end says so with its lock, so that whoever wants
 * the store next can wait for it instead of giving up.
 */
#ifndef KV_INDEX_LOCK_H
#define KV_INDEX_LOCK_H

#include "common/kv.h"

enum kv_lock_state { KV_LOCK_FREE, KV_LOCK_HELD, KV_LOCK_ENDING };

struct kv_lock_wait {
	/* Runs once, when it is known that the owner is ending; may be NULL. */
	void (*waiting)(void *arg, long owner);
	void *arg;
};

/*
 * Lock the store whose directory is @store, and give the lock's descriptor; it
 * is held until that is closed, and @store.  Not @write: with others who only
 * read, and -1 where nobody ever locked it.  Waits some seconds for an owner
 * that may be ending, and longer for one that is.  -EBUSY: it goes on, or the
 * system's error.
 */
int kv_lock_take(int store, bool write, const struct kv_lock_wait *wait,
		 int *ret_fd);
/* The owner is ending: it will let go, and takes no more requests. */
void kv_lock_end(int fd);
/* The state of the lock as seen through @fd, STORE/lock open for reading. */
enum kv_lock_state kv_lock_look(int fd);
/* The pid that the owner wrote into it; 0: none. */
long kv_lock_owner(int store);

#endif
