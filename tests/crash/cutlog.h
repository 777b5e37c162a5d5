/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cutlog.h - the ordered log that disk.c writes and cuts.c reads: writes, flushes, and the
 * acknowledgements of the disk's user.
 *
 * The log begins with the disk's contents as writes, then a flush, so that a reader needs
 * no other file.  A record is followed by its bytes.
 */
#ifndef KV_TESTS_CRASH_CUTLOG_H
#define KV_TESTS_CRASH_CUTLOG_H

#include <stdint.h>

#define CUT_MAGIC 0x3147534bu
#define CUT_SECTOR 512u

enum cut_type { CUT_WRITE = 1, CUT_FLUSH, CUT_WORD };

struct cut_record {
	uint32_t magic, type;
	uint32_t bytes; /* WRITE */
	/* type WORD: the journal's word, by its writer and its index */
	uint32_t writer, index;
	uint32_t reserved;
	/* type WRITE: offset, on the second disk counted on from the end of
	 * the first; type FLUSH: where the flushed disk begins; type WORD:
	 * value of the word */
	uint64_t at;
};

#endif
