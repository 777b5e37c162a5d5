/* SPDX-License-Identifier: Apache-2.0 */
/*
 * words.h - the comma-separated words of -o.
 */
#ifndef KV_FS_WORDS_H
#define KV_FS_WORDS_H

#include "fs/options.h"
#include "fs/quantity.h"

#define KV_DRAM_MIN (UINT64_C(16) << 20)
#define KV_SSD_MIN (UINT64_C(16) << 20)
#define KV_SEGMENT_MIN (UINT64_C(8) << 20)
#define KV_SEGMENT_UNIT (UINT64_C(2) << 20) /* huge pages */

/* What is known of the words while the command line is being parsed. */
struct kv_words {
	bool by_mount; /* called as mount.kvfs */
	bool sloppy;   /* -s: unknown words are passed over */
	bool dram_given, ssd_given;
	struct kv_quantity dram, ssd;
	char *dram_text, *ssd_text; /* for messages */
	char *control;
};

/* Parse one -o argument; the same word again replaces the one before.
 * -EINVAL, and a message that names the word. */
int kv_words_parse(struct kv_words *words, struct kv_options *options,
		   const char *text, char **ret_why);
void kv_words_fini(struct kv_words *words);

#endif
