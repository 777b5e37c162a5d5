/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reference.c - plain files beside the store, and memcmp.
 *
 * OWNS      `reference` (blocks one after the other), `names` (a line a block)
 *           and `answer` in the demo's work directory.
 *
 * LOCKING   none; one thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tools/demo/own.h"
#include "tools/demo/reference.h"

struct kv_reference {
	uint8_t *blocks;
	size_t block; /* bytes of one */
};

static FILE *open_below(const char *work, const char *name, const char *mode)
{
	char path[4096];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", work, name);
	file = fopen(path, mode);
	if (!file)
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
	return file;
}

static int differs(const char *what, size_t i)
{
	fprintf(stderr, "DIFFERS: %s of block %zu\n", what, i);
	return -EILSEQ;
}

/* ---- blocks ---- */

int kv_reference_write(const char *work, const struct kv_client *client,
		       const struct kv_seqstate *state)
{
	size_t i, bytes = kv_seqshape_block(&state->shape);
	_cleanup_(kv_fclosep) FILE *file = open_below(work, "reference", "we");
	_cleanup_(kv_fclosep) FILE *names = open_below(work, "names", "we");
	_cleanup_(kv_freep) uint8_t *block = malloc(bytes);
	char name[65];

	if (!block)
		return -ENOMEM;
	if (!file || !names)
		return -EIO;
	for (i = 0; i < KV_PROMPT_BLOCKS; i++) {
		kv_seqstate_copy(state, (uint32_t)i, block);
		kvfs_key_name(&client->keys[i], name);
		if (fwrite(block, bytes, 1, file) != 1 ||
		    fprintf(names, "%s\n", name) < 0)
			return -EIO;
	}
	return fflush(file) == 0 && fflush(names) == 0 ? 0 : -EIO;
}

int kv_reference_open(const char *work, const struct kv_seqshape *shape,
		      struct kv_reference **ret_reference)
{
	_cleanup_(kv_reference_closep) struct kv_reference *reference = NULL;
	_cleanup_(kv_fclosep) FILE *file = open_below(work, "reference", "re");
	struct stat st;
	void *blocks;

	if (!file)
		return -ENOENT;
	reference = calloc(1, sizeof(*reference));
	if (!reference)
		return -ENOMEM;
	reference->block = kv_seqshape_block(shape);
	if (fstat(fileno(file), &st) < 0 ||
	    (size_t)st.st_size != KV_PROMPT_BLOCKS * reference->block)
		return -EBADMSG;
	blocks = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE,
		      fileno(file), 0);
	if (blocks == MAP_FAILED)
		return -errno;
	reference->blocks = blocks;
	*ret_reference = kv_steal(reference);
	return 0;
}

void kv_reference_close(struct kv_reference *reference)
{
	if (!reference)
		return;
	if (reference->blocks)
		munmap(reference->blocks, KV_PROMPT_BLOCKS * reference->block);
	free(reference);
}

void kv_reference_closep(struct kv_reference **reference)
{
	kv_reference_close(*reference);
}

static const uint8_t *block_of(const struct kv_reference *reference, size_t i)
{
	return reference->blocks + i * reference->block;
}

long kv_reference_state(const struct kv_reference *reference,
			const struct kv_seqstate *state, size_t first,
			size_t end)
{
	_cleanup_(kv_freep) uint8_t *block = malloc(reference->block);
	size_t i;

	if (!block)
		return -ENOMEM;
	for (i = first; i < end; i++) {
		kv_seqstate_copy(state, (uint32_t)i, block);
		if (memcmp(block, block_of(reference, i), reference->block) !=
		    0)
			return differs("the engine's pages", i);
	}
	return (long)((end - first) * reference->block);
}

long kv_reference_lease(const struct kv_reference *reference, kvfs_lease *lease,
			size_t n)
{
	const void *data;
	uint64_t bytes;
	size_t i;

	for (i = 0; i < n; i++) {
		data = kvfs_lease_data(lease, i, &bytes);
		if (!data || bytes != reference->block ||
		    memcmp(data, block_of(reference, i), bytes) != 0)
			return differs("the arena's copy", i);
	}
	return (long)(n * reference->block);
}

/* The tensors are the end of the file. */
static int file_compare(const struct kv_reference *reference, const char *path,
			size_t i, uint8_t *buffer)
{
	_cleanup_(kv_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	off_t at;
	ssize_t n;

	if (fd < 0 || fstat(fd, &st) < 0) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		return -EIO;
	}
	at = st.st_size - (off_t)reference->block;
	n = at < 0 ? -1 : pread(fd, buffer, reference->block, at);
	if (n != (ssize_t)reference->block ||
	    memcmp(buffer, block_of(reference, i), reference->block) != 0)
		return differs("the file", i);
	return 0;
}

long kv_reference_files(const struct kv_reference *reference,
			const struct kv_client *client, size_t n)
{
	_cleanup_(kv_freep) uint8_t *buffer = malloc(reference->block);
	char path[4096], name[65];
	size_t i;
	int r;

	if (!buffer)
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		kvfs_key_name(&client->keys[i], name);
		snprintf(path, sizeof(path), "%s/%.2s/%s", client->path, name,
			 name);
		r = file_compare(reference, path, i, buffer);
		if (r < 0)
			return r;
	}
	return (long)(n * reference->block);
}

/* ---- answers ---- */

int kv_answer_write(const char *work, const struct kv_answer *answer)
{
	_cleanup_(kv_fclosep) FILE *file = open_below(work, "answer", "we");

	if (!file || fwrite(answer, sizeof(*answer), 1, file) != 1 ||
	    fflush(file) != 0)
		return -EIO;
	return 0;
}

int kv_answer_read(const char *work, struct kv_answer *ret_answer)
{
	_cleanup_(kv_fclosep) FILE *file = open_below(work, "answer", "re");

	if (!file || fread(ret_answer, sizeof(*ret_answer), 1, file) != 1)
		return -EIO;
	return 0;
}

int kv_answer_compare(const struct kv_answer *expected,
		      const struct kv_answer *found)
{
	if (memcmp(expected->tokens, found->tokens, sizeof(found->tokens)) !=
	    0) {
		fprintf(stderr, "DIFFERS: the tokens generated\n");
		return -EILSEQ;
	}
	if (memcmp(&expected->logits, &found->logits, sizeof(found->logits)) !=
	    0) {
		fprintf(stderr, "DIFFERS: the logits of a token generated\n");
		return -EILSEQ;
	}
	return 0;
}
