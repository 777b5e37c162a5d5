/* SPDX-License-Identifier: Apache-2.0 */
/*
 * words.h - the words of -o, and what they have said.
 */
#ifndef KV_FS_WORDS_H
#define KV_FS_WORDS_H

#include <stdio.h>

#include "fs/options.h"
#include "fs/base/quantity.h"

/* A size whose limits depend on the machine: kept as typed, for messages. */
struct kv_typed_size {
	struct kv_quantity quantity;
	char *text; /* NULL: not given */
};

/* A command line, as far as it has been read. */
struct kv_parsing {
	struct kv_options options;
	bool by_mount;	/* called as mount.kvfs */
	bool sloppy;	/* -s: unknown words are passed over */
	uint64_t given; /* a bit for each known word */
	struct kv_typed_size dram, ssd;
	char *control;
};

/* Take in @text, words with commas between them.  -EINVAL or -ENOMEM, and
 * *@ret_why as kv_options_parse has it. */
int kv_words_parse(struct kv_parsing *p, const char *text, char **ret_why);

/* The words that were given, once all is settled, as lines of .kvfs/config; caller
 * frees.  NULL: out of memory. */
char *kv_words_lines(const struct kv_parsing *p);
/* Print allow= as .kvfs/config has it. */
void kv_words_print_allow(FILE *f, const struct kv_rules *rules);

/* Print the words with their values, in lines of at most 78 columns. */
void kv_words_print(FILE *f);

#endif
