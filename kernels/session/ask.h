/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ask.h - one question and its answer, on the look-up connection.
 */
#ifndef KV_KERNELS_SESSION_ASK_H
#define KV_KERNELS_SESSION_ASK_H

#include "common/kv.h"
#include "common/wire.h"

struct kvfs_session;

/*
 * Send @request with @bytes of @items, wait at most a second for the reply, and
 * put its items in @reply, which has room for @room bytes.  Returns how many
 * bytes came, or the reply's status if that is an error.  @request gets the
 * reply's header.
 * -ENOTCONN: no daemon; -EMFILE, -ENFILE, -ENOMEM: or no means to connect with
 * it.  -ETIMEDOUT: it did not answer; for a second after that
 * nobody is kept waiting for it again.
 */
struct kv_question {
	struct wire_header header;
	const void *items;
	size_t bytes;
	void *reply;
	size_t room;
};
long kv_ask(struct kvfs_session *session, struct kv_question *question);

/* Whether there is a daemon that does not answer.  Takes two seconds at most,
 * and 20 microseconds if it does. */
bool kv_ask_hangs(struct kvfs_session *session);
/* How often one who waits for the daemon looks at that. */
#define KV_LOOK_NS 250000000u

#endif
