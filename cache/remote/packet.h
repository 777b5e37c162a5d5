/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packet.h - what is said to a helper: packets of items, sent without waiting.
 */
#ifndef KV_CACHE_REMOTE_PACKET_H
#define KV_CACHE_REMOTE_PACKET_H

#include "cache/remote/helper.h"

#define KV_HELPER_PACKET 8192u

/* A part of its owner; all zero is none. */
struct kv_packet_out {
	size_t n;
	uint8_t bytes[KV_HELPER_PACKET];
};

/* Begin one without items; there is none that waits. */
void kv_packet_begin(struct kv_packet_out *packet, enum kv_helper_type type);
/* False: it is full. */
bool kv_packet_add(struct kv_packet_out *packet, const void *item, size_t n);

/* Whether there is one with items, not sent yet. */
bool kv_packet_waits(const struct kv_packet_out *packet);
void kv_packet_drop(struct kv_packet_out *packet);

/* 0: none waits any more; -EAGAIN: when the socket takes it; else -errno. */
int kv_packet_send(struct kv_packet_out *packet, int socket);

/* The first, with the descriptor @landing. */
int kv_packet_hello(int socket, int landing,
		    const struct kv_helper_config *config);

#endif
