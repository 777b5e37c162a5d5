/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mail.h - work handed over to the control thread by other threads.
 */
#ifndef KV_FS_CONTROL_MAIL_H
#define KV_FS_CONTROL_MAIL_H

#include "common/kv.h"

/* In the sender's memory; the control thread's from post until @run. */
struct kv_mail {
	struct kv_mail *next;
	void (*run)(struct kv_mail *mail); /* may free it, and may post */
};

struct kv_mailbox {
	pthread_mutex_t lock;
	struct kv_mail *first, **last; /* lock */
	int fd; /* fixed after init; readable while there is mail */
};

int kv_mailbox_init(struct kv_mailbox *box); /* -EMFILE, -ENFILE, -ENOMEM */
void kv_mailbox_fini(struct kv_mailbox *box);

/* Any thread; never blocks, never fails. */
void kv_mailbox_post(struct kv_mailbox *box, struct kv_mail *mail);

/* Run what is there now, in the order of posting.  One thread only. */
void kv_mailbox_run(struct kv_mailbox *box);

#endif
