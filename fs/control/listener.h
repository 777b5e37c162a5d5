/* SPDX-License-Identifier: Apache-2.0 */
/*
 * listener.h - the control socket's name in the file system.
 */
#ifndef KV_FS_CONTROL_LISTENER_H
#define KV_FS_CONTROL_LISTENER_H

#include <sys/types.h>

#include "common/kv.h"

struct kv_listener {
	int fd; /* non-blocking, listening; -1: closed */
	char *path;
	bool made_dir; /* the directory it is in is ours, too */
	dev_t dev;
	ino_t ino;
};

/*
 * As kv_control_start has it: makes missing parents, sweeps a dead socket,
 * listens with mode 0666.  On failure *@ret_why may be a message.
 */
int kv_listener_open(struct kv_listener *listener, const char *path,
		     char **ret_why);

/* Close, and remove the name if it is still this socket's, and the directory
 * if we made it and it is empty.  A closed one is fine. */
void kv_listener_close(struct kv_listener *listener);

#endif
