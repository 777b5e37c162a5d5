/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chore.h - a request that waits for the disk, on a thread of its own.
 */
#ifndef KV_FS_CONTROL_CHORE_H
#define KV_FS_CONTROL_CHORE_H

#include "fs/control/request.h"

struct kv_chore {
	struct kv_request request; /* first */
	struct kv_work work;
	uint32_t uid;
	/* On the thread: becomes its status; 1: it goes on after others of its
	 * user. */
	int (*run)(struct kv_chore *chore);
	int status;
};

/* Have @run called, and its kind's finish when that is over. */
void kv_chore_begin(struct kv_chore *chore, int (*run)(struct kv_chore *chore));

/* A kind's cancel, of what never goes on: it ends with @status, unless it has
 * begun. */
void kv_chore_cancel(struct kv_request *request, int status);

#endif
