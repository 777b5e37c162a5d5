/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.h - the state that all handlers of a mount share; daemon.c fills it in.
 */
#ifndef KV_FS_MOUNT_MOUNT_H
#define KV_FS_MOUNT_MOUNT_H

/* The version of libfuse's low-level interface that fs/ uses. */
#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#include "cache/cache.h"
#include "fs/base/access.h"

/* Layouts that are hidden from the processes that removed them: see tree.c. */
#define KV_HIDDEN_RECORDS 64u
struct kv_hidden {
	pthread_mutex_t lock;
	unsigned next; /* lock, as are: */
	struct kv_hidden_record {
		uint32_t space; /* 0: none */
		uid_t uid;
		pid_t process;
		uint64_t until_ns;
	} records[KV_HIDDEN_RECORDS];
};

struct kv_mount {
	/* fixed after start, as are all other fields except `hidden` */
	struct kv_cache *cache;
	struct kv_uploads *uploads;
	struct kv_lives *lives;
	struct kv_hidden hidden;
	struct kv_handles *handles;
	struct kv_notify *notify;
	struct kv_parking *parking;
	const char *control_path;
	const struct kv_rules *rules;
	uint32_t umask; /* cleared from the mode of new spaces */
	int64_t started_ns;
	uint32_t max_write, max_readahead; /* bytes, agreed with the kernel */
	/* Make the text of a file below .kvfs, as @reader may see it; caller
	 * frees. Returns 0, -ENOMEM or -ESTALE. */
	int (*text)(void *arg, uint64_t ino, const struct kv_caller *reader,
		    char **ret_text);
	void *arg;
};

/* ---- the FUSE handlers, each of which replies exactly once ---- */

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
