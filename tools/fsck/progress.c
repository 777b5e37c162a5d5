/* SPDX-License-Identifier: Apache-2.0 */
/*
 * progress.c - the bar.
 *
 * OWNS     the last line of the terminal, while it is shown.
 * LOCKING  one thread.
 */
#include "tools/fsck/fsck.h"

#define AFTER_NS 1000000000u
#define EVERY_NS 100000000u
#define WIDTH 40

static uint64_t began, drawn;
static bool shown;

void fsck_progress(const char *what, uint64_t done, uint64_t of)
{
	uint64_t now = kv_now_ns();
	int filled;

	if (!began)
		began = now;
	if (now - began < AFTER_NS || now - drawn < EVERY_NS || of == 0 ||
	    !isatty(STDERR_FILENO))
		return;
	drawn = now;
	shown = true;
	filled = (int)((double)KV_MIN(done, of) / (double)of * WIDTH);
	fprintf(stderr, "\r%s [%.*s%.*s] %3d%%", what, filled,
		"########################################", WIDTH - filled,
		"                                        ",
		(int)((double)KV_MIN(done, of) / (double)of * 100));
}

void fsck_progress_end(void)
{
	if (shown)
		fprintf(stderr, "\r%*s\r", WIDTH + 30, "");
	shown = false;
}
