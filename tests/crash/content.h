/* SPDX-License-Identifier: Apache-2.0 */
/*
 * content.h - self-describing blocks: every 64-byte line of a block has its key, its
 * generation and its offset, so that a wrong byte shows its origin: another block, an
 * older generation, zeros, a shift.
 *
 * A block's id is made of a space, a writer and an index.  Saving the block again after
 * its removal raises its generation, which changes every line.
 */
#ifndef KV_TESTS_CRASH_CONTENT_H
#define KV_TESTS_CRASH_CONTENT_H

#include <stdio.h>

#include "common/block.h"
#include "kernels/kvfs.h"
#include "common/kv.h"
#include "common/layout.h"

#define CONTENT_MAGIC 0x4b56465354455354ull
#define CONTENT_MAX (2u << 20) /* highest number of bytes of a block's file */
#define CONTENT_TOKENS 4
#define SECOND 1000000000ull

struct content_line {
	uint64_t magic, id, gen, offset, fill[4];
};

static inline uint64_t content_mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

/* Return the id of a block.  @space: the one-letter name of its space; a, b, d,
 * e have a layout, c has none. */
static inline uint64_t content_id(char space, unsigned writer, unsigned index)
{
	return (uint64_t)space << 32 | (uint64_t)writer << 16 | index;
}

static inline kvfs_key content_key(uint64_t id)
{
	kvfs_key key = {.len = 16};
	uint64_t spread = content_mix(id);

	memcpy(key.bytes, &spread, 8);
	memcpy(key.bytes + 8, &id, 8);
	return key;
}

/* Return the number of bytes of the tensors, a multiple of 64. */
static inline uint64_t content_payload(uint64_t id, uint64_t gen)
{
	static const uint64_t sizes[] = {4096, 30080, 131072, 300032};

	switch ((char)(id >> 32)) {
	case 'a':
		return 131072;
	case 'b':
		return 40064;
	case 'd':
		return 1 << 20;
	case 'e':
		return 16384;
	default:
		return sizes[content_mix(id ^ gen << 48) % 4];
	}
}

static inline void content_layout_text(uint64_t payload, char text[256])
{
	snprintf(text, 256,
		 "{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":"
		 "[%llu]},{\"name\":\"v\",\"dtype\":\"U8\",\"shape\":[%llu]}],"
		 "\"tokens\":%d,\"seed\":\"0123456789abcdef\"}",
		 (unsigned long long)payload / 2,
		 (unsigned long long)payload / 2, CONTENT_TOKENS);
}

/* Return the layout of blocks with @payload bytes; it lives as long as the
 * program. */
static inline const struct kv_layout *content_layout(uint64_t payload)
{
	static struct kv_layout *known[16];
	char text[256];
	size_t i;

	for (i = 0; i < KV_ARRAY_LEN(known) && known[i] != NULL; i++)
		if (known[i]->payload == payload)
			return known[i];
	content_layout_text(payload, text);
	if (i == KV_ARRAY_LEN(known) ||
	    kv_layout_parse(text, strlen(text), &known[i]) < 0)
		abort();
	return known[i];
}

static inline void content_line(struct content_line *line, uint64_t id,
				uint64_t gen, uint64_t offset)
{
	uint64_t mixed = content_mix(id ^ gen << 40 ^ offset << 17);

	line->magic = CONTENT_MAGIC;
	line->id = id;
	line->gen = gen;
	line->offset = offset;
	for (unsigned i = 0; i < 4; i++)
		line->fill[i] = mixed * (2 * i + 1);
}

/* Write the bytes of the block's tensors. */
static inline void content_fill(void *at, uint64_t id, uint64_t gen)
{
	struct content_line line;

	for (uint64_t i = 0; i < content_payload(id, gen); i += sizeof(line)) {
		content_line(&line, id, gen, i);
		memcpy((uint8_t *)at + i, &line, sizeof(line));
	}
}

/* Write the file's bytes before the tensors; return their number. */
static inline uint64_t content_header(void *at, uint64_t id, uint64_t gen)
{
	const struct kv_layout *layout =
		content_layout(content_payload(id, gen));
	struct kv_meta meta = {.position = (uint16_t)id,
			       .tokens = CONTENT_TOKENS};
	kvfs_key key = content_key(id);
	struct kv_key k = {.len = (uint8_t)key.len};

	memcpy(k.b, key.bytes, key.len);
	if (kv_block_header_bytes(layout) != KV_PAGE ||
	    kv_block_header_write(layout, &k, &meta, at) < 0)
		abort();
	return KV_PAGE;
}

/* Write the whole file; return its length. */
static inline uint64_t content_file(void *at, uint64_t id, uint64_t gen)
{
	uint64_t header = content_header(at, id, gen);

	content_fill((uint8_t *)at + header, id, gen);
	return header + content_payload(id, gen);
}

static inline void content_complain(const void *got, uint64_t id,
				    uint64_t offset)
{
	const struct content_line *line = got;

	printf("WRONG: block %llx, at %llu: magic %llx id %llx generation %llu "
	       "offset %llu\n",
	       (unsigned long long)id, (unsigned long long)offset,
	       (unsigned long long)line->magic, (unsigned long long)line->id,
	       (unsigned long long)line->gen, (unsigned long long)line->offset);
}

/* Check that these @bytes are the tensors of block @id, and return their
 * generation. */
static inline int content_check_tensors(const void *at, uint64_t bytes,
					uint64_t id, uint64_t *ret_gen)
{
	struct content_line line, got;
	uint64_t gen;

	if (bytes < sizeof(line))
		return -EBADMSG;
	memcpy(&line, at, sizeof(line));
	gen = line.gen;
	for (uint64_t i = 0; i + sizeof(line) <= bytes; i += sizeof(line)) {
		memcpy(&got, (const uint8_t *)at + i, sizeof(got));
		content_line(&line, id, gen, i);
		if (memcmp(&got, &line, sizeof(line)) != 0) {
			content_complain(&got, id, i);
			return -EBADMSG;
		}
	}
	if (bytes != content_payload(id, gen)) {
		printf("WRONG: block %llx has %llu bytes of tensors\n",
		       (unsigned long long)id, (unsigned long long)bytes);
		return -EBADMSG;
	}
	*ret_gen = gen;
	return 0;
}

/* Check that this is the file of block @id, byte for byte. */
static inline int content_check_file(const void *file, uint64_t length,
				     uint64_t id, uint64_t *ret_gen)
{
	static _Thread_local uint8_t header[KV_PAGE];
	uint64_t head = sizeof(header);
	int r;

	if (length <= head) {
		printf("WRONG: block %llx is a file of %llu bytes\n",
		       (unsigned long long)id, (unsigned long long)length);
		return -EBADMSG;
	}
	r = content_check_tensors((const uint8_t *)file + head, length - head,
				  id, ret_gen);
	if (r < 0)
		return r;
	if (content_header(header, id, *ret_gen) != head ||
	    memcmp(header, file, head) != 0) {
		printf("WRONG: block %llx: its header differs\n",
		       (unsigned long long)id);
		return -EBADMSG;
	}
	return 0;
}

/* Store the path of the block @id below @mount in @path: SPACE/xx/KEY. */
static inline void content_path(const char *mount, uint64_t id, char path[512])
{
	kvfs_key key = content_key(id);
	char name[65];

	kvfs_key_name(&key, name);
	snprintf(path, 512, "%s/%c/%.2s/%s", mount, (char)(id >> 32), name,
		 name);
}

#endif
