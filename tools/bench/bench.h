/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - what the files of kvfs-bench share.
 *
 * The order, each file below those that it uses:
 *   run.c        the directory, the child processes, the daemon under test
 *   report.c     samples and figures: a table, and JSON lines
 *   reference.c  memory, threads that memcpy, and fio, to compare with
 *   rig.c        a daemon with one space of blocks, and an engine's pools
 *   load.c save.c probe.c mount.c footprint.c   the figures
 *   main.c       the list of figures
 */
#ifndef KV_TOOLS_BENCH_BENCH_H
#define KV_TOOLS_BENCH_BENCH_H

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "kernels/kvfs.h"

static inline uint64_t kv_bench_now(void) /* ns */
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void kv_bench_sleep_ms(unsigned ms)
{
	struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};

	nanosleep(&t, NULL);
}

/* ---- run.c ---- */

#define KV_BENCH_CHILDREN 4

struct kv_bench_children {
	pthread_mutex_t lock;
	pid_t pids[KV_BENCH_CHILDREN]; /* lock; 0: free */
	bool closed;		       /* lock */
};

struct kv_bench {
	const char *build; /* has the program kvfs; bench.json goes there */
	char *dir;	   /* all files of this run are below it */
	bool quick;
	unsigned threads;	  /* as many as libkvfs copies with */
	char memcpy_text[32];	  /* "memcpy, N threads" */
	pthread_mutex_t cleaning; /* held from the beginning of the end */
	struct kv_bench_children children;
	struct kv_bench_report *report;
};

/*
 * Start @argv (looked up in PATH) with its output in the file @log.  The child
 * ends with the bench, however the bench ends.
 * -ECANCELED after kv_bench_children_end, -EMFILE: too many, -EAGAIN.
 */
int kv_bench_child_start(struct kv_bench_children *children, char *const argv[],
			 const char *log, pid_t *ret_pid);

/* Exit status, 128 + the signal that ended it, or -ECHILD. */
int kv_bench_child_wait(struct kv_bench_children *children, pid_t pid);
bool kv_bench_child_alive(struct kv_bench_children *children, pid_t pid);

/* Send SIGTERM, and SIGKILL if the child still runs 30 s later.  0: none. */
void kv_bench_child_end(struct kv_bench_children *children, pid_t pid);

/* End all children; later starts fail. */
void kv_bench_children_end(struct kv_bench_children *children);

/* Return whether @program is in PATH. */
bool kv_bench_program_found(const char *program);

/* Make a directory below @dir, or beside @build if @dir is NULL.  @ret_path is
 * absolute; the caller frees it. */
int kv_bench_workdir_make(const char *dir, const char *build, char **ret_path);

/* Unmount a mount that is left at @path/mnt, and remove @path. */
void kv_bench_workdir_remove(const char *path);

/* Remove one file or tree. */
void kv_bench_remove(const char *path);

/* A name for the filesystem of @path, such as "ext4". */
const char *kv_bench_filesystem(const char *path);

struct kv_bench_daemon {
	struct kv_bench_children *children;
	pid_t pid;
	char mount[PATH_MAX], store[PATH_MAX], log[PATH_MAX];
};

/*
 * Start @bench's kvfs with @options on the store @bench->dir/store, mounted at
 * @bench->dir/mnt.  Returns when the mount answers.  -EIO: the daemon ended,
 * its output is on stderr; -ETIMEDOUT: it does not answer.
 */
int kv_bench_daemon_start(struct kv_bench *bench, const char *options,
			  struct kv_bench_daemon *ret_daemon);

/* End the daemon, in order or by SIGKILL; the store stays. */
void kv_bench_daemon_end(struct kv_bench_daemon *daemon);
void kv_bench_daemon_kill(struct kv_bench_daemon *daemon);

/* Unmount, end, remove the store.  Takes one that was not started. */
void kv_bench_daemon_stop(struct kv_bench_daemon *daemon);

/*
 * Wait until the daemon has its arena of @arena bytes and does no background
 * work, such as writing back.  Gives up after 20 s.
 */
void kv_bench_daemon_settle(const struct kv_bench_daemon *daemon,
			    uint64_t arena);

/* Bytes of the daemon's anonymous memory, without the arena.  -errno. */
long kv_bench_daemon_anonymous(const struct kv_bench_daemon *daemon);

/* ---- report.c ---- */

/* A growing set of measurements. */
struct kv_bench_sample {
	double *values;
	size_t n;
};

/* Add nothing if memory is short; the percentile then is 0. */
void kv_bench_sample_add(struct kv_bench_sample *sample, double value);

/* The value that @percent of all do not exceed; sorts @sample.  0 if empty. */
double kv_bench_sample_percentile(struct kv_bench_sample *sample,
				  double percent);
double kv_bench_sample_median(struct kv_bench_sample *sample);
void kv_bench_samples_free(struct kv_bench_sample *samples, size_t n);

/*
 * Call @round @n + 1 times; from the second call on add the @width values that
 * it gives to as many @samples.  Returns the first error.
 */
int kv_bench_rounds(int (*round)(void *arg, unsigned i, double *ret_values),
		    void *arg, unsigned n, struct kv_bench_sample *samples,
		    size_t width);

struct kv_bench_figure {
	const char *name;
	const char
		*suffix; /* of the block size, follows the name; NULL: none */
	double value, reference;
	const char *unit;    /* of both; GB/s: more is better, else less */
	const char *against; /* name of the reference; NULL: none */
	/* Goals; 0: none. */
	double least_ratio; /* the ratio says how many times as good */
	double most;	    /* value */
};

struct kv_bench_report;

/* @only: figures whose names begin otherwise are left out; NULL: none are.
 * -ENOMEM. */
int kv_bench_report_new(const char *path, const char *only,
			struct kv_bench_report **ret_report);

/* Print how many figures there are and met their goals, write the file @path,
 * and free.  Takes NULL.  Returns why the file cannot be written. */
int kv_bench_report_close(struct kv_bench_report *report);

/* Return whether a figure of this name was asked for. */
bool kv_bench_report_wants(const struct kv_bench_report *report,
			   const char *name, const char *suffix);

void kv_bench_report_add(struct kv_bench_report *report,
			 const struct kv_bench_figure *figure);

/* Print a line below the figure before, in the table only. */
void kv_bench_report_note(struct kv_bench_report *report, const char *format,
			  ...) __attribute__((format(printf, 2, 3)));

/* Add @figure with the medians of both samples, GB/s, and their spread. */
void kv_bench_report_speeds(struct kv_bench_report *report,
			    struct kv_bench_figure figure,
			    struct kv_bench_sample *speeds,
			    struct kv_bench_sample *references);

/* Report that @program is missing, and this figure with it. */
void kv_bench_report_skip(struct kv_bench_report *report, const char *name,
			  const char *suffix, const char *program);

/* ---- reference.c ---- */

struct kv_bench_memory {
	void *base;
	size_t bytes;
	int fd; /* of a memfd, to lend; 0: private memory */
};

/* Map touched memory, in 2 MiB pages if the system gives them.  -ENOMEM. */
int kv_bench_memory_map(size_t bytes, struct kv_bench_memory *ret_memory);
void kv_bench_memory_unmap(struct kv_bench_memory *memory); /* takes unmapped */

/* Percent of this process's anonymous memory that is in 2 MiB pages. */
unsigned kv_bench_memory_huge_percent(void);

struct kv_bench_piece {
	void *dst;
	const void *src;
	size_t bytes;
};

struct kv_bench_crew;

/* @threads in all, the caller's among them.  -ENOMEM, -EAGAIN. */
int kv_bench_crew_new(unsigned threads, struct kv_bench_crew **ret_crew);
void kv_bench_crew_free(struct kv_bench_crew *crew); /* takes NULL */

/* memcpy every piece, on the caller's thread alone if @crew is NULL.  Returns
 * the nanoseconds until all are copied. */
uint64_t kv_bench_crew_copy(struct kv_bench_crew *crew,
			    const struct kv_bench_piece *pieces, size_t n);

/* Make @path with @bytes of random data in written extents, synced.  -errno. */
int kv_bench_fio_file(const char *path, uint64_t bytes);

/*
 * GB/s of fio with O_DIRECT, io_uring, queue depth 32, 2 MiB pages and
 * registered buffers, as in the daemon, in blocks of @block: it reads @bytes of
 * @path, or with @writers writes as many to a new file @path that is allocated
 * but was never written, each writer a part of it with fsync at the end.  The
 * new file is removed.  -EIO: fio failed.
 */
int kv_bench_fio(struct kv_bench *bench, const char *path, uint64_t block,
		 uint64_t bytes, unsigned writers, double *ret_speed);

/* ---- rig.c ---- */

/* A size of blocks.  Each has tensors k and v of @layers times 32 KiB. */
struct kv_bench_size {
	const char *suffix;
	unsigned layers;
	size_t blocks; /* about 280 MiB of them */
	bool context;  /* a long context, for its own figures only */
};

#define KV_BENCH_LAYER 32768u /* 16 tokens, 8 heads, 128, BF16 */
#define KV_BENCH_HEAD 4096u   /* of these, one head's */
#define KV_BENCH_GROUP 127u   /* blocks of one load or lease */
#define KV_BENCH_SPACE "bench"

/* Bytes of a block's tensors. */
static inline uint64_t kv_bench_payload(const struct kv_bench_size *size)
{
	return 2ull * size->layers * KV_BENCH_LAYER;
}

/* A daemon with one space of blocks, and an engine's pools. */
struct kv_bench_rig {
	struct kv_bench *bench;
	const struct kv_bench_size *size;
	struct kv_bench_daemon daemon;
	struct kv_bench_crew *crew;
	struct kv_bench_memory pages, spare; /* each holds all blocks */
	kvfs_session *session;
	kvfs_space *space;
	kvfs_pool *page_first;	/* a block is one run of bytes */
	kvfs_pool *split;	/* one run for K, one for V */
	kvfs_pool *layer_first; /* a run for each layer, as in vLLM */
	kvfs_pool *head_first;	/* and for each head of each layer: 4 KiB */
	kvfs_key *keys;		/* size->blocks of them, durable */
	uint32_t next_token;
	uint64_t saved; /* blocks in the store */
};

/* Start the daemon and save @size->blocks blocks under rig->keys, durable. */
int kv_bench_rig_open(struct kv_bench *bench, const struct kv_bench_size *size,
		      struct kv_bench_rig *rig);
void kv_bench_rig_close(struct kv_bench_rig *rig); /* takes half-open ones */

/* Open a session, the space @name on it, and the four pools over rig->pages. */
int kv_bench_rig_open_space(struct kv_bench_rig *rig, const char *name);
void kv_bench_rig_close_space(struct kv_bench_rig *rig); /* all of these */

/* A pool over @memory where a block is one run of bytes. */
int kv_bench_rig_pool(struct kv_bench_rig *rig,
		      const struct kv_bench_memory *memory,
		      kvfs_pool **ret_pool);

/* Keys of a chain of @n new blocks. */
int kv_bench_rig_keys(struct kv_bench_rig *rig, kvfs_key *ret_keys, size_t n);

/* Save all pages of @pool under @keys; times until the stages, in ns. */
int kv_bench_rig_save(struct kv_bench_rig *rig, kvfs_pool *pool,
		      const kvfs_key *keys, uint64_t *ret_sealed,
		      uint64_t *ret_durable);

/* Hold rig->keys[first] .. + n.  -EIO if one of them is not held. */
int kv_bench_rig_acquire(struct kv_bench_rig *rig, size_t first, size_t n,
			 kvfs_lease **ret_lease);

/* Compare the blocks that @lease, of all rig->keys, holds with the saved bytes.
 * 0, or -EBADMSG. */
int kv_bench_rig_verify(struct kv_bench_rig *rig, kvfs_lease *lease);

/* Wait until the daemon has the whole arena and is idle: 0.3 s at least. */
void kv_bench_rig_settle(struct kv_bench_rig *rig);

/* Drop all rig->keys from DRAM and let the arena settle.  -EBUSY: some stay. */
int kv_bench_rig_chill(struct kv_bench_rig *rig);

/* The path of a block's file below the directory @root. */
void kv_bench_rig_path(const char *root, const kvfs_key *key, char *ret_path,
		       size_t room);

/* ---- figures ---- */

/* Each function measures its figures on @rig, reports them, and leaves
 * rig->keys durable; -errno: the measurement failed. */

/* load.c: snapshot_8192, restore_first, restore_all */
int kv_bench_context(struct kv_bench_rig *rig);
int kv_bench_load(struct kv_bench_rig *rig);  /* load_dram and three shapes */
int kv_bench_lease(struct kv_bench_rig *rig); /* lease */
int kv_bench_cold(struct kv_bench_rig *rig);  /* load_ssd_cold */
/* save.c */
int kv_bench_save(struct kv_bench_rig *rig); /* save_sealed, save_durable */
int kv_bench_save_heads(struct kv_bench_rig *rig); /* save_sealed_4k */
int kv_bench_save_lent(struct kv_bench_rig *rig);  /* save_lent */
int kv_bench_writers(struct kv_bench_rig *rig);	   /* save_durable_4w */
/* probe.c: probe128_p50, probe128_p99 */
int kv_bench_probe(struct kv_bench_rig *rig);
/* mount.c: read_mount_second, read_mount_first */
int kv_bench_mount(struct kv_bench_rig *rig);
/* footprint.c: memory_anon */
int kv_bench_anonymous(struct kv_bench_rig *rig);

/* footprint.c: mount_clean_1m, mount_killed_1m, with a store of its own */
int kv_bench_million(struct kv_bench *bench);
/* mount.c: tree_find, tree_du, tree_ls, tree_rm; the same */
int kv_bench_tree(struct kv_bench *bench);

/*
 * footprint.c: make a store @dir whose index has @blocks small blocks, chains
 * of 1,000, and whose files are sparse: nobody reads them.  @ret_ssd: the cap
 * to mount the store with.  -errno.
 */
int kv_bench_store_make(const char *dir, uint64_t blocks, uint64_t *ret_ssd);

/* mount.c: the server that tree_* compare with.  Serve @files files in
 * MOUNTPOINT/million until unmounted or SIGTERM.  Returns the exit status. */
int kv_bench_nothing(unsigned files, const char *mountpoint);

#endif
