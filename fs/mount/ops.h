/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ops.h - the FUSE handlers.  Each replies exactly once.
 */
#ifndef KV_FS_MOUNT_OPS_H
#define KV_FS_MOUNT_OPS_H

#include "fs/mount/mount.h"

/* tree.c */
void kv_fs_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void kv_fs_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name,
		 mode_t mode);
void kv_fs_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void kv_fs_rename(fuse_req_t req, fuse_ino_t parent, const char *name,
		  fuse_ino_t newparent, const char *newname, unsigned flags);
void kv_fs_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void kv_fs_readlink(fuse_req_t req, fuse_ino_t ino);
void kv_fs_statfs(fuse_req_t req, fuse_ino_t ino);

/* dir.c */
void kv_fs_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void kv_fs_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		   struct fuse_file_info *fi);
void kv_fs_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		       struct fuse_file_info *fi);
void kv_fs_releasedir(fuse_req_t req, fuse_ino_t ino,
		      struct fuse_file_info *fi);
void kv_fs_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync,
		    struct fuse_file_info *fi);

/* attr.c */
void kv_fs_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void kv_fs_setattr(fuse_req_t req, fuse_ino_t ino, struct stat *attr,
		   int to_set, struct fuse_file_info *fi);

/* open.c */
void kv_fs_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void kv_fs_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
		struct fuse_file_info *fi);
void kv_fs_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void kv_fs_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence,
		 struct fuse_file_info *fi);

/* open.c, writing */
void kv_fs_create(fuse_req_t req, fuse_ino_t parent, const char *name,
		  mode_t mode, struct fuse_file_info *fi);
void kv_fs_mknod(fuse_req_t req, fuse_ino_t parent, const char *name,
		 mode_t mode, dev_t rdev);
void kv_fs_write(fuse_req_t req, fuse_ino_t ino, const char *data, size_t n,
		 off_t off, struct fuse_file_info *fi);
void kv_fs_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void kv_fs_fsync(fuse_req_t req, fuse_ino_t ino, int datasync,
		 struct fuse_file_info *fi);

/* xattr.c */
void kv_fs_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		    size_t size);
void kv_fs_setxattr(fuse_req_t req, fuse_ino_t ino, const char *name,
		    const char *value, size_t size, int flags);
void kv_fs_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void kv_fs_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

/* tree.c: unsupported calls */
void kv_fs_symlink(fuse_req_t req, const char *target, fuse_ino_t parent,
		   const char *name);
void kv_fs_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t newparent,
		const char *newname);

/* The caller makes a layout: no longer hide the old layout from its process. */
void kv_layout_show(struct kv_mount *mount, uint32_t space,
		    const struct fuse_ctx *ctx);

#endif
