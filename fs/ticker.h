/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ticker.h - a thread that does something every second.
 */
#ifndef KV_FS_TICKER_H
#define KV_FS_TICKER_H

#include "common/kv.h"

struct kv_ticker;

/* @name: at most 15 bytes, as ps -T shows it.  -ENOMEM, -EAGAIN. */
int kv_ticker_start(const char *name, void (*tick)(void *arg), void *arg,
		    struct kv_ticker **ret_ticker);
/* Waits for a tick under way.  Takes NULL. */
void kv_ticker_stop(struct kv_ticker *ticker);

#endif
