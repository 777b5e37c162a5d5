/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.h - where a daemon in the background says what it has to say.
 */
#ifndef KV_FS_LOG_H
#define KV_FS_LOG_H

/*
 * From here on no terminal and no pipe is ours: a standard error that is a file
 * stays, and each line that is written to another goes to the system's log, or is
 * lost if that does not take it at once.  Before there are threads that write there.
 */
void kv_log_detach(void);

#endif
