/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.h - figures that several processes measure, and the table of them.
 */
#ifndef KV_TOOLS_DEMO_REPORT_H
#define KV_TOOLS_DEMO_REPORT_H

/*
 * Note @value under @name below @work: prefill, load_dram, load_ssd_cold,
 * restore, save_sealed, save_durable (seconds), tokens, blocks, bytes,
 * verified (bytes; these add up).  Returns 0, -EIO.
 */
int kv_report_add(const char *work, const char *name, double value);

/* Print the table.  -ENODATA: a figure is missing. */
int kv_report_print(const char *work);

#endif
