/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reference.h - what the engine processes note beside kvfs: what the first of
 * them computed, and figures.
 *
 * Every later byte is compared with this: blocks in the arena, pages loaded,
 * files read through the mount, KV computed again, tokens and logits.
 * Functions return 0 or a count, or -errno, and have said why on stderr;
 * -EILSEQ: something differs.
 */
#ifndef KV_TOOLS_DEMO_REFERENCE_H
#define KV_TOOLS_DEMO_REFERENCE_H

#include "tools/demo/client.h"

struct kv_reference; /* the blocks, mapped */

/* Write the blocks of the prompt from @state, and their names, below @work. */
int kv_reference_write(const char *work, const struct kv_client *client,
		       const struct kv_seqstate *state);
int kv_reference_open(const char *work, const struct kv_seqshape *shape,
		      struct kv_reference **ret_reference);
void kv_reference_close(struct kv_reference *reference); /* takes NULL */

/* Pages @first .. @end-1 of @state.  Returns the bytes compared. */
long kv_reference_state(const struct kv_reference *reference,
			const struct kv_seqstate *state, size_t first,
			size_t end);
/* The first @n blocks in the arena. */
long kv_reference_lease(const struct kv_reference *reference, kvfs_lease *lease,
			size_t n);
/* The first @n block files below the mount. */
long kv_reference_files(const struct kv_reference *reference,
			const struct kv_client *client, size_t n);

/* The tokens generated, and the logits of each. */
struct kv_answer {
	uint32_t tokens[32];
	kvfs_key logits;
};

/* Keep @answer below @work. */
int kv_answer_write(const char *work, const struct kv_answer *answer);
int kv_answer_read(const char *work, struct kv_answer *ret_answer);
int kv_answer_compare(const struct kv_answer *expected,
		      const struct kv_answer *found);

/*
 * Note @value under @name below @work: prefill, load_dram, load_ssd_cold,
 * restore, save_sealed, save_durable (seconds), tokens, blocks, bytes,
 * verified (bytes; these add up).  Returns 0, -EIO.
 */
int kv_report_add(const char *work, const char *name, double value);

/* Print the table.  -ENODATA: a figure is missing. */
int kv_report_print(const char *work);

#endif
