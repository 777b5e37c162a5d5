/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h - what fuzz targets share: taking an input to pieces, and a main that
 * runs the target on files.
 *
 * A target is one file here: LLVMFuzzerTestOneInput, which aborts where a
 * promise is broken.  `make fuzz` links it with libFuzzer, whose main wins over
 * the weak one below; any other build makes a program that replays its corpus.
 */
#ifndef KV_TESTS_FUZZ_FUZZ_H
#define KV_TESTS_FUZZ_FUZZ_H

#include <stdio.h>

#include "common/kv.h"

#define FUZZ_INPUT_MAX (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Also where NDEBUG would take assertions away. */
#define fuzz_must(condition)                                               \
	do {                                                               \
		if (!(condition)) {                                        \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, \
				#condition);                               \
			abort();                                           \
		}                                                          \
	} while (0)

/* What is left of an input. */
struct fuzz {
	const uint8_t *at;
	size_t left;
};

/* Zero at the end. */
static inline uint8_t fuzz_byte(struct fuzz *f)
{
	if (f->left == 0)
		return 0;
	f->left--;
	return *f->at++;
}

static inline uint32_t fuzz_u16(struct fuzz *f)
{
	uint32_t low = fuzz_byte(f);

	return low | (uint32_t)fuzz_byte(f) << 8;
}

/*
 * The next @n bytes, or what there is, copied to memory of exactly that size,
 * so that a sanitizer sees what is read past them.  Caller frees.
 */
static inline uint8_t *fuzz_take(struct fuzz *f, size_t n, size_t *ret_n)
{
	uint8_t *copy;

	n = KV_MIN(n, f->left);
	copy = malloc(n ? n : 1);
	fuzz_must(copy);
	memcpy(copy, f->at, n);
	f->at += n;
	f->left -= n;
	*ret_n = n;
	return copy;
}

/* The same up to a newline, as a string. */
static inline char *fuzz_line(struct fuzz *f)
{
	const uint8_t *end = f->left ? memchr(f->at, '\n', f->left) : NULL;
	size_t n = end ? (size_t)(end - f->at) : f->left;
	char *line = strndup((const char *)f->at, n);

	fuzz_must(line);
	n += end != NULL;
	f->at += n;
	f->left -= n;
	return line;
}

static inline void fuzz_replay(const char *path, uint8_t *room)
{
	FILE *file = fopen(path, "rb");
	struct fuzz all = {room, 0};
	uint8_t *exact;
	size_t n;

	fuzz_must(file);
	all.left = fread(room, 1, FUZZ_INPUT_MAX, file);
	fclose(file);
	exact = fuzz_take(&all, all.left, &n);
	LLVMFuzzerTestOneInput(exact, n);
	free(exact);
}

__attribute__((weak)) int main(int argc, char **argv)
{
	uint8_t *room = malloc(FUZZ_INPUT_MAX);

	fuzz_must(room);
	for (int i = 1; i < argc; i++)
		fuzz_replay(argv[i], room);
	free(room);
	printf("%d inputs\n", argc - 1);
	return argc > 1 ? 0 : 2;
}

#endif
