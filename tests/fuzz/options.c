/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of the daemon.  Input: one argument per line. */
#include "fs/daemon.h"
#include "fs/base/quantity.h"
#include "tests/fuzz/fuzz.h"

#define ARGUMENTS 16

static void check(const struct kv_options *o)
{
	if (o->action != KV_RUN)
		return;
	fuzz_must(o->store && o->store[0] == '/');
	fuzz_must(!o->control || o->control[0] == '/');
	fuzz_must(o->cache.dram >= KV_DRAM_MIN);
	fuzz_must(o->cache.ssd == 0 || o->cache.ssd >= KV_SSD_MIN);
	fuzz_must(o->cache.segment >= KV_SEGMENT_MIN);
	fuzz_must((o->umask & ~0777u) == 0);
}

static void parse(int argc, char **argv)
{
	_cleanup_(kv_freep) char *why = NULL;
	struct kv_options options;
	int r = kv_options_parse(argc, argv, &options, &why);

	if (r == 0) {
		check(&options);
		kv_options_fini(&options);
		return;
	}
	fuzz_must(r == -EINVAL && why && why[0]);
	fuzz_must(!strchr(why, '\n'));
}

static void parse_quantity(const char *text)
{
	struct kv_quantity q;
	uint64_t n;

	if (kv_quantity_parse(text, &q) == 0)
		fuzz_must(q.percent ? q.value >= 1 && q.value <= 100
				    : q.value <= INT64_MAX);
	if (kv_bytes_parse(text, &n) == 0)
		fuzz_must(n <= INT64_MAX);
	if (kv_number_parse(text, 8, 07777, &n) == 0)
		fuzz_must(n <= 07777);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = {data, size};
	char *argv[ARGUMENTS + 1] = {NULL};
	int argc = 0;

	while (argc == 0 || (f.left && argc < ARGUMENTS))
		argv[argc++] = fuzz_line(&f);
	parse_quantity(argv[argc - 1]);
	parse(argc, argv);
	for (int i = 0; i < ARGUMENTS; i++)
		free(argv[i]);
	return 0;
}
