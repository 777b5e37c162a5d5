/* SPDX-License-Identifier: Apache-2.0 */
/*
 * owner.c - a user whose clients write into mapped memory that they should not change; and
 * another user.
 *
 *     owner saves SOCKET     save blocks of space "own", make them durable,
 *                            acquire them, until the input ends
 *     owner meddles SOCKET   write into the blocks' memory and punch holes into
 *                            it, until the input ends
 *     owner beside SOCKET    as saves, in "private" and "shared", but every byte
 *                            must be right
 *     owner checks SOCKET SPACE   check the present blocks; exit 1 if a byte is
 *                                 wrong, or a block on SSD is damaged
 *
 * OWNS      its connection, and these spaces.
 *
 * LOCKING   none: one thread a process.
 */
#define PEER_SEGMENTS 4096
#include "tests/fs/peer.h"

#define BATCH 64u
#define KEYS (32 * BATCH) /* number of blocks: twice what fits into memory */
#define LAYOUT \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[65536]}]}"

static struct peer p;
static unsigned wrong, damaged, right;

static bool join(const char *sock, bool registers)
{
	return peer_connect(&p, sock) && peer_hello(&p) == 0 &&
	       (!registers ||
		peer_raw(&p, &(struct wire_header){.type = WIRE_REGISTERS},
			 sizeof(struct wire_header), -1, 0));
}

static bool enter(const char *name, uint32_t mode)
{
	return peer_space(&p, name, LAYOUT, WIRE_SPACE_CREATE, mode) == 0 &&
	       (p.staging || peer_staging(&p, BATCH * 65536) == 0);
}

static bool input_ended(void)
{
	struct pollfd input = {.fd = 0, .events = POLLIN};

	return poll(&input, 1, 0) != 0;
}

/* Lease the existing blocks of a batch.  Return false if the connection has
 * ended. */
static bool acquire(uint32_t first, uint64_t *ret_tag)
{
	*ret_tag = peer_send_acquire(&p, first, BATCH, 0, 0);
	return *ret_tag && peer_acquired(&p, *ret_tag) >= 0;
}

static bool release(uint64_t tag)
{
	return peer_raw(&p,
			&(struct wire_header){.type = WIRE_RELEASE, .tag = tag},
			sizeof(struct wire_header), -1, 0);
}

static bool look_at(uint32_t first)
{
	const struct wire_place *places = PEER_ITEMS(&p, struct wire_place);
	uint64_t tag;

	if (!acquire(first, &tag))
		return false;
	for (uint32_t i = 0; i < BATCH; i++) {
		damaged += places[i].status == -EBADMSG;
		if (places[i].status != 0)
			continue;
		if (peer_right(&p, i, first + i))
			right++;
		else
			wrong++;
	}
	return release(tag);
}

/* Save a batch of blocks.  Some may find no room, but the connection must
 * stay. */
static bool save(uint32_t first)
{
	return peer_do(&p, WIRE_RESERVE, first, BATCH) != -EPIPE &&
	       peer_saved(&p, peer_send_saves(&p, first, BATCH)) != -EPIPE &&
	       peer_do(&p, WIRE_FLUSH, first, BATCH) != -EPIPE;
}

static int saves(const char *sock)
{
	if (!join(sock, true) || !enter("own", 0700))
		return 1;
	for (uint32_t first = 0; !input_ended(); first += BATCH)
		if (!save(first % KEYS) || !look_at(first / 3 % KEYS))
			return 1;
	return 0;
}

static uint64_t draw(void)
{
	static uint64_t x = 88172645463325252u;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return x;
}

static void meddle(uint8_t *data, uint64_t bytes)
{
	if (mprotect(data, bytes, PROT_READ | PROT_WRITE) < 0)
		return; /* the client may not write to this segment */
	for (unsigned i = 0; i < 500; i++)
		memset(data + draw() % (bytes - 64), (int)draw(), 64);
	if (draw() % 8 == 0)
		madvise(data + draw() % (bytes / KV_PAGE) * KV_PAGE, KV_PAGE,
			MADV_REMOVE);
	if (draw() % 64 == 0)
		madvise(data, bytes, MADV_REMOVE);
	right++;
}

static int meddles(const char *sock)
{
	uint64_t tag;

	if (!join(sock, true) || !enter("own", 0700))
		return 1;
	while (!input_ended()) {
		if (!acquire((uint32_t)(draw() % KEYS), &tag))
			return 1;
		for (unsigned i = 0; i < PEER_SEGMENTS; i++)
			if (p.segments[i].data)
				meddle((uint8_t *)p.segments[i].data,
				       p.segments[i].bytes);
		if (!release(tag))
			return 1;
	}
	printf("%u times\n", right);
	return right == 0;
}

static int beside(const char *sock)
{
	if (!join(sock, true))
		return 1;
	for (uint32_t first = 0; !input_ended(); first += BATCH)
		if (!enter("private", 0700) || !save(first % KEYS) ||
		    !look_at(first / 3 % KEYS) || !enter("shared", 0755) ||
		    !save(first % KEYS) || !look_at(first / 3 % KEYS))
			return 1;
	printf("%u right, %u wrong, %u damaged\n", right, wrong, damaged);
	return wrong > 0 || damaged > 0 || right == 0;
}

static int checks(const char *sock, const char *space)
{
	if (!join(sock, false) || peer_space(&p, space, "", 0, 0) < 0)
		return 1;
	for (uint32_t first = 0; first < KEYS; first += BATCH)
		if (!look_at(first))
			return 1;
	printf("%u right, %u wrong, %u damaged\n", right, wrong, damaged);
	return wrong > 0 || damaged > 0 || right == 0;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	if (strcmp(argv[1], "saves") == 0)
		return saves(argv[2]);
	if (strcmp(argv[1], "meddles") == 0)
		return meddles(argv[2]);
	if (strcmp(argv[1], "beside") == 0)
		return beside(argv[2]);
	return argc < 4 ? 2 : checks(argv[2], argv[3]);
}
