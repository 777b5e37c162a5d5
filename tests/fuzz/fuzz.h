/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz.h - common code of fuzz targets: splitting an input, and a main that runs the
 * target on files.
 *
 * Each target is a file in this folder with an LLVMFuzzerTestOneInput, which aborts when a
 * promise is broken.  `make fuzz` links it with libFuzzer, whose main replaces the weak one
 * below; any other build makes a program that replays the target's corpus.
 */
#ifndef KV_TESTS_FUZZ_FUZZ_H
#define KV_TESTS_FUZZ_FUZZ_H

#include <stdio.h>

#include "common/kv.h"

#define FUZZ_INPUT_MAX (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Abort unless @condition holds, even with NDEBUG. */
#define fuzz_must(condition)                                               \
	do {                                                               \
		if (!(condition)) {                                        \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, \
				#condition);                               \
			abort();                                           \
		}                                                          \
	} while (0)

/* The part of an input that is still unread. */
struct fuzz {
	const uint8_t *at;
	size_t left;
};

/* Take the next byte of the input; 0 at its end. */
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
 * Take the next @n bytes, or as many as there are, copied to memory of exactly that size,
 * so that a sanitizer detects reads past the end.  Caller frees.
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

/* Take the bytes up to the next newline, as a string.  Caller frees. */
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

/* Run random inputs for @seconds.  Longer searches are left to libFuzzer, which aims for
 * code not yet covered. */
static inline int fuzz_at_random(uint8_t *room, unsigned long seconds,
				 uint64_t seed)
{
	const uint64_t end = kv_now_ns() + seconds * 1000000000ull;
	unsigned long n = 0;

	while (kv_now_ns() < end) {
		size_t size = 64 + seed % 4000;

		for (size_t i = 0; i < size; i++) {
			seed = seed * 6364136223846793005u +
			       1442695040888963407u;
			room[i] = (uint8_t)(seed >> 56);
		}
		LLVMFuzzerTestOneInput(room, size);
		n++;
	}
	printf("%lu inputs\n", n);
	return 0;
}

/* Usage: PROGRAM FILE..., or PROGRAM -seconds N SEED */
__attribute__((weak)) int main(int argc, char **argv)
{
	uint8_t *room = malloc(FUZZ_INPUT_MAX);
	int r = argc > 1 ? 0 : 2;

	fuzz_must(room);
	if (argc == 4 && strcmp(argv[1], "-seconds") == 0) {
		r = fuzz_at_random(room, strtoul(argv[2], NULL, 10),
				   strtoul(argv[3], NULL, 10));
		free(room);
		return r;
	}
	for (int i = 1; i < argc; i++)
		fuzz_replay(argv[i], room);
	free(room);
	printf("%d inputs\n", argc - 1);
	return r;
}

#endif
