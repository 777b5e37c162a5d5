/* SPDX-License-Identifier: Apache-2.0 */
/*
 * packet.c - what is said to a helper.
 *
 * OWNS      nothing.
 *
 * LOCKING   the caller's.
 */
#include <stdio.h>
#include <sys/socket.h>

#include "cache/remote/packet.h"
#include "common/bytes.h"

void kv_packet_begin(struct kv_packet_out *packet, enum kv_helper_type type)
{
	const struct kv_helper_head head = {.type = (uint16_t)type};

	memcpy(packet->bytes, &head, sizeof(head));
	packet->n = sizeof(head);
}

bool kv_packet_add(struct kv_packet_out *packet, const void *item, size_t n)
{
	struct kv_helper_head head;

	if (packet->n + n > sizeof(packet->bytes))
		return false;
	memcpy(packet->bytes + packet->n, item, n);
	packet->n += n;
	memcpy(&head, packet->bytes, sizeof(head));
	head.count++;
	memcpy(packet->bytes, &head, sizeof(head));
	return true;
}

bool kv_packet_waits(const struct kv_packet_out *packet)
{
	return packet->n > sizeof(struct kv_helper_head);
}

void kv_packet_drop(struct kv_packet_out *packet)
{
	packet->n = 0;
}

int kv_packet_send(struct kv_packet_out *packet, int socket)
{
	if (!kv_packet_waits(packet))
		return 0;
	if (send(socket, packet->bytes, packet->n,
		 MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return errno == EINTR || errno == ENOBUFS ? -EAGAIN : -errno;
	packet->n = 0;
	return 0;
}

int kv_packet_hello(int socket, int landing,
		    const struct kv_helper_config *config)
{
	struct kv_helper_head head = {KV_HELPER_HELLO, 1, 0};
	struct kv_helper_hello hello = {.version = KV_HELPER_VERSION,
					.landing = config->landing};
	struct iovec parts[] = {{&head, sizeof(head)}, {&hello, sizeof(hello)}};

	snprintf(hello.tenant, sizeof(hello.tenant), "%s", config->tenant);
	snprintf(hello.text, sizeof(hello.text), "%s", config->url);
	return kv_send_parts(socket, parts, 2, landing, MSG_DONTWAIT);
}
