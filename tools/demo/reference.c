/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reference.c - plain files beside the store, memcmp, and a table.
 *
 * OWNS      `reference` (blocks one after the other), `names` (a line a block),
 *           `answer` and `report` (a name and a value a line) in the demo's
 *           work directory.
 *
 * LOCKING   none; the demo's processes run one after another.
 */
#include "tools/demo/reference.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "tools/demo/own.h"

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

static void closep(struct kv_reference **reference)
{
	kv_reference_close(*reference);
}

int kv_reference_open(const char *work, const struct kv_seqshape *shape,
		      struct kv_reference **ret_reference)
{
	_cleanup_(closep) struct kv_reference *reference = NULL;
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

/* ---- figures ---- */

static FILE *report_open(const char *work, const char *mode)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/report", work);
	return fopen(path, mode);
}

int kv_report_add(const char *work, const char *name, double value)
{
	_cleanup_(kv_fclosep) FILE *file = report_open(work, "ae");

	if (!file || fprintf(file, "%s %.9g\n", name, value) < 0 ||
	    fflush(file) != 0)
		return -EIO;
	return 0;
}

/* The sum of what was noted under @name; negative: nothing was. */
static double figure(const char *work, const char *name)
{
	_cleanup_(kv_fclosep) FILE *file = report_open(work, "re");
	double value, sum = -1;
	char found[64];

	while (file && fscanf(file, "%63s %lf", found, &value) == 2) {
		if (strcmp(found, name) == 0)
			sum = sum < 0 ? value : sum + value;
	}
	return sum;
}

static void line(const char *what, double seconds, double bytes, double prefill)
{
	printf("  %-42s %9.4f s", what, seconds);
	if (bytes > 0)
		printf(" %8.2f GB/s", bytes / seconds / 1e9);
	if (prefill > 0)
		printf(" %8.0f times prefill's speed", prefill / seconds);
	putchar('\n');
}

int kv_report_print(const char *work)
{
	double prefill = figure(work, "prefill");
	double dram = figure(work, "load_dram");
	double ssd = figure(work, "load_ssd_cold");
	double restore = figure(work, "restore");
	double sealed = figure(work, "save_sealed");
	double durable = figure(work, "save_durable");
	double blocks = figure(work, "blocks"), bytes = figure(work, "bytes");
	double tokens = figure(work, "tokens");
	double verified = figure(work, "verified");

	if (prefill < 0 || dram < 0 || ssd < 0 || restore < 0 || sealed < 0 ||
	    durable < 0 || blocks < 0 || bytes < 0 || tokens < 0 ||
	    verified < 0) {
		fprintf(stderr, "a figure is missing\n");
		return -ENODATA;
	}
	printf("  %.0f tokens in %.0f blocks of %.2f MiB, %.1f MB in all\n\n",
	       tokens, blocks, bytes / blocks / 1048576, bytes / 1e6);
	line("prefill", prefill, 0, 0);
	line("load from DRAM", dram, bytes, 0);
	line("load from SSD, cold", ssd, bytes, 0);
	line("load from DRAM and hand to the engine", dram + restore, 0,
	     prefill);
	line("load from SSD and hand to the engine", ssd + restore, 0, prefill);
	line("save until others find it", sealed, bytes, 0);
	line("save until durable", durable, bytes, 0);
	printf("\n  %.0f bytes compared with what the first engine computed: "
	       "all the same\n",
	       verified);
	return 0;
}
