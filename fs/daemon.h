/* SPDX-License-Identifier: Apache-2.0 */
/* daemon.h - a daemon that serves one store: its options, its FUSE session, the
 * directory to mount on, umount.kvfs and `kvfs --health`. */
#ifndef KV_FS_DAEMON_H
#define KV_FS_DAEMON_H

#include <limits.h>
#include <stdio.h>

#include "fs/mount/mount.h"

/* ---- options: the command line, parsed, with every default filled in ---- */

#define KV_DRAM_MIN (UINT64_C(16) << 20)
#define KV_SSD_MIN (UINT64_C(16) << 20)
#define KV_SEGMENT_MIN (UINT64_C(8) << 20)

enum kv_action { KV_RUN, KV_SHOW_HELP, KV_SHOW_VERSION, KV_FAKE };

/* The lowest memory limit of this process's control groups (version 2). */
struct kv_cgroup_limit {
	uint64_t bytes;	     /* UINT64_MAX: none */
	char file[PATH_MAX]; /* the file that has the limit */
};

struct kv_options {
	enum kv_action action;
	char *store;	  /* absolute path of the store */
	char *mountpoint; /* mount point as given; NULL: `none` was given */
	char *control;	  /* absolute path of the socket; NULL: the default */
	uint32_t idle;	  /* seconds without use until the end; 0: no end */
	bool foreground, debug;
	bool allow_other;
	uint32_t umask;
	struct kv_rules rules;
	bool closed;		       /* only root may use the mount */
	unsigned seccomp;	       /* 0: system calls are filtered */
	char *fuse;		       /* options for FUSE; NULL: none */
	struct kv_cgroup_limit memory; /* memory limit that bounds dram= */
	struct kv_cache_config cache;  /* its callbacks are not set */
};

/*
 * Parse the command line and fill in every default.  A program called mount.kvfs
 * (the last part of argv[0]) takes the arguments of mount(8).  The store is not
 * touched.  Returns 0, -EINVAL or -ENOMEM; on failure *@ret_why is one line for
 * the user that names the option (caller frees; NULL if memory is short).
 */
int kv_options_parse(int argc, char **argv, struct kv_options *ret_options,
		     char **ret_why);
void kv_options_fini(struct kv_options *options);

/* Print the options as lines of .kvfs/config, without the options whose value the
 * cache or the daemon settles. */
void kv_options_print(FILE *f, const struct kv_options *options);

/*
 * Find the lowest limit of the control group of this process and of the visible groups
 * above it: of memory, or with @huge_pages of 2 MiB pages, which limits of memory do not
 * count.  A file that cannot be read limits nothing.  @root is put before every path: ""
 * except in tests.
 */
void kv_cgroup_limit(const char *root, bool huge_pages,
		     struct kv_cgroup_limit *ret_limit);

/* Return true if the program was called as mount.kvfs. */
bool kv_mount_called(const char *name);

/* Print the usage, as -h does. */
void kv_options_help(FILE *f);

/* ---- the rights of the daemon, and the process that has those it gives up ---- */

struct kv_warden {
	int socket;
	int filter; /* 0: system calls are filtered; 1: seccomp=off; -errno */
};

enum kv_errand {
	KV_MOUNT,
	KV_READY, /* wait until the mount answers, and announce it to umount(8) */
	KV_UNMOUNT,
};

/*
 * Fork the warden, which mounts at @path (NULL: nowhere) for this process, and give up all
 * rights that a daemon does not need.  Call this before any thread starts: threads and
 * children inherit what is left.  The warden calls @detach (NULL: none) once it needs the
 * caller's standard error no more, and ends with this process.  Rights that cannot be
 * given up cost a line on standard error.  Returns 0, or errors of socketpair(2), fork(2).
 */
int kv_warden_start(const struct kv_options *options, const char *path,
		    void (*detach)(void), struct kv_warden *ret_warden);

/* Have the warden do an errand, and wait for its end; one thread at a time.  Returns the
 * descriptor of /dev/fuse (KV_MOUNT), 0, or -EIO with one line in *@ret_why (caller
 * frees). */
int kv_warden_ask(struct kv_warden *warden, enum kv_errand errand,
		  char **ret_why);

/* Print the rights of this process as lines of .kvfs/config. */
void kv_warden_describe(const struct kv_warden *warden, FILE *f);

/* ---- the daemon ---- */

struct kv_gate;

struct kv_daemon {
	/* fixed after open, as are all fields except `control` */
	const struct kv_options *options;
	struct kv_warden *warden;
	struct kv_cache *cache;
	struct kv_mount *mount;
	char *control_path;

	/* Held for reading by the cache's callbacks, on the cache's threads. */
	pthread_rwlock_t lock;
	struct kv_control *control; /* lock */
};

/* Open the store and start the control socket.  @options, @warden and @gate must outlive
 * the daemon.  On failure *@ret_why is one line for the user (caller frees). */
int kv_daemon_open(const struct kv_options *options, struct kv_warden *warden,
		   struct kv_gate *gate, struct kv_daemon **ret_daemon,
		   char **ret_why);
/* Wait until everything is written, and close.  Takes NULL. */
void kv_daemon_close(struct kv_daemon *daemon);

/* ---- one FUSE session, from mount(2) to unmount ---- */

/* Mount at @path, in the warden.  Returns a descriptor of /dev/fuse, or -errno with one
 * line for the user in *@ret_why (caller frees). */
int kv_session_mount(const struct kv_options *options, const char *path,
		     char **ret_why);

/*
 * Block the signals that end the daemon, in this thread and in threads that it starts
 * later.  Call this first.
 */
void kv_session_block_signals(void);

/*
 * Mount at @path (NULL: no FUSE) and serve until the mount is unmounted or a signal comes.
 * @ready runs once the mount answers, on a thread that answers no FUSE requests.  On
 * failure *@ret_why is one line for the user (caller frees).
 */
int kv_session_run(struct kv_daemon *daemon, const char *path,
		   void (*ready)(void *arg), void *arg, char **ret_why);

/* ---- the directory to mount on, umount.kvfs, and `kvfs --health` ----
 *
 * The kernel tells a FUSE server of its end when the mount is already gone, and
 * umount(2) does not wait.  So umount.kvfs makes the spaces durable, unmounts, and
 * waits until the store is free.
 *
 * umount(8) calls the helper of the part of a type before its dot, which is "fuse" for
 * every FUSE filesystem, unless mount(8) has recorded an option helper= for the mount. */

/*
 * Check @path before anything is made on disk, unmount a kvfs there whose daemon is dead,
 * and return the absolute form of @path in *@ret_path (caller frees).  Returns 0, or:
 *   -ENOENT, -ENOTDIR
 *   -EBUSY   a FUSE filesystem is mounted there
 *   -EINVAL  one of @path and @store lies in the other
 * On failure *@ret_why is one line for the user.
 */
int kv_mountpoint_check(const char *path, const char *store, char **ret_path,
			char **ret_why);

#define KV_READAHEAD (1u << 20)

/* Return true once the mount answers, and raise the kernel's read-ahead.  The daemon itself
 * must not call this: a process that is killed while it waits for its own answer never
 * ends. */
bool kv_mountpoint_answers(const char *path);

/* Unmount what is mounted at @path, even if it is dead or in use. */
void kv_mountpoint_detach(const char *path);

/* Return 1 if @file is below @mountpoint, both absolute; else 0, or -ENOMEM. */
int kv_mountpoint_covers(const char *mountpoint, const char *file);

/* Return what is mounted topmost at @path according to @text, which has the
 * form of /proc/self/mounts: 1 kvfs, 2 another FUSE filesystem, 0 something
 * else or nothing. */
int kv_mounts_find(const char *text, const char *path);

/* Make umount(8) call umount.kvfs, if that is installed, for the mount, or copy of a
 * mount, at @path, which must answer.  Only root can do this. */
void kv_umount_announce(const char *path);
/* Return true if the program was called as umount.kvfs. */
bool kv_umount_called(const char *name);
/* Run umount.kvfs.  Returns the exit status of umount(8): 0, 1 usage, 32 failed. */
int kv_umount_main(int argc, char **argv);

/* Run `kvfs --health` with MOUNTPOINT or SOCKET in argv[0], and the time limit in
 * seconds in argv[1] if @argc is 2.  Prints one line and returns the exit status:
 *   0  the daemon answers and its SSD works
 *   1  the daemon does not answer, or the command line is wrong
 *   3  the daemon answers, but its SSD does not work */
int kv_health_main(int argc, char **argv);

#endif
