/* SPDX-License-Identifier: Apache-2.0 */
/*
 * refuse.c - calls that no file of this tree has.  What is not even here
 * (ioctl, copy_file_range, locks) is answered by the kernel itself.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <errno.h>

#include "fs/mount/ops.h"

/* Valid replies: fuse_reply_err. */
void kv_fs_symlink(fuse_req_t req, const char *target, fuse_ino_t parent,
		   const char *name)
{
	(void)target;
	(void)parent;
	(void)name;
	fuse_reply_err(req, EPERM);
}

/* Valid replies: fuse_reply_err. */
void kv_fs_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent,
		const char *newname)
{
	(void)ino;
	(void)newparent;
	(void)newname;
	fuse_reply_err(req, EPERM);
}

/* Valid replies: fuse_reply_err. */
void kv_fs_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset,
		     off_t length, struct fuse_file_info *fi)
{
	(void)ino;
	(void)mode;
	(void)offset;
	(void)length;
	(void)fi;
	fuse_reply_err(req, EOPNOTSUPP);
}
