/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - what the files of kvfs-bench share.
 *
 * Each file uses only files above it in this list:
 *   run.c        the directory, the processes, the daemon under test
 *   report.c     samples and figures: a table, and JSON lines
 *   reference.c  memory, threads that memcpy, and fio, to compare with
 *   rig.c        a daemon with one space of blocks, and an engine's pools
 *   load.c save.c mount.c   the figures
 *   main.c       the list of figures
 */
#ifndef KV_TOOLS_BENCH_BENCH_H
#define KV_TOOLS_BENCH_BENCH_H

#include <limits.h>

#include "common/kv.h"
#include "kernels/kvfs.h"

/* ---- run.c ---- */

struct kv_bench {
	const char *build; /* folder of the program kvfs and of bench.json */
	const char *only;  /* prefix of the figures to measure; NULL: all */
	char *dir;	   /* directory of all files of this run */
	bool quick, json;
	unsigned rounds;      /* rounds of most figures, after one to warm up */
	unsigned threads;     /* number of copy threads, as in libkvfs */
	char memcpy_text[32]; /* text "memcpy, N threads" */
	struct kv_bench_report *report;
};

/*
 * Call @measure in a child process.  At its end, and on SIGINT, SIGTERM and
 * SIGHUP, end all processes of the run and remove @bench->dir.  Return the exit
 * status.
 */
int kv_bench_supervise(struct kv_bench *bench,
		       int (*measure)(struct kv_bench *bench));

/* Start @argv (looked up in PATH) with its output in the file @log.  The kernel
 * ends the child when this process ends.  -EAGAIN, -ENOMEM. */
int kv_bench_child_start(char *const argv[], const char *log, pid_t *ret_pid);

/* Start @argv and wait for its end.  -EIO: the exit status is not 0. */
int kv_bench_child_run(char *const argv[], const char *log);

/* Return whether the child @pid runs; if not, set *@pid to 0. */
bool kv_bench_child_alive(pid_t *pid);

/* End child *@pid by SIGTERM, after 30 s by SIGKILL.  Set *@pid to 0. */
void kv_bench_child_end(pid_t *pid);

/* Return whether @program is installed. */
bool kv_bench_program_found(const char *program);

/* Remove a file, or a directory with its contents. */
void kv_bench_remove(const char *path);

struct kv_bench_daemon {
	pid_t pid;
	char mount[PATH_MAX], store[PATH_MAX], log[PATH_MAX];
};

/*
 * Start @bench's kvfs with @options on the store @bench->dir/store, mounted at
 * @bench->dir/mnt.  Return when the mount answers.
 * -EIO: the daemon ended, its output is on stderr
 * -ETIMEDOUT: the daemon does not answer
 */
int kv_bench_daemon_start(struct kv_bench *bench, const char *options,
			  struct kv_bench_daemon *ret_daemon);

/* End the daemon by SIGKILL; the store stays. */
void kv_bench_daemon_kill(struct kv_bench_daemon *daemon);

/* Unmount, end the daemon if it was started, remove the store. */
void kv_bench_daemon_stop(struct kv_bench_daemon *daemon);

#define KV_BENCH_ARENA_GIB 1 /* size of the daemon's arena */

/* Wait until the daemon has mapped its arena and does no background work, such
 * as write-back; 0.3 s at least, 20 s at most. */
void kv_bench_daemon_settle(const struct kv_bench_daemon *daemon);

/* Return the line @name of the daemon's /proc/PID/status in bytes, or -errno. */
long kv_bench_daemon_memory(const struct kv_bench_daemon *daemon,
			    const char *name);

/* ---- report.c ---- */

/* A growing set of measurements. */
struct kv_bench_sample {
	double *values;
	size_t n;
};

/* Add @value to @sample; without memory add nothing. */
void kv_bench_sample_add(struct kv_bench_sample *sample, double value);

/* Sort @sample and return the value that @percent of all values do not exceed;
 * 0: @sample is empty. */
double kv_bench_sample_percentile(struct kv_bench_sample *sample,
				  double percent);
double kv_bench_sample_median(struct kv_bench_sample *sample);
void kv_bench_samples_free(struct kv_bench_sample *samples, size_t n);

/* Call @round @n + 1 times.  The first call warms up; each later call's @width
 * values are added to as many @samples.  Return the first error. */
int kv_bench_rounds(int (*round)(void *arg, double *ret_values), void *arg,
		    unsigned n, struct kv_bench_sample *samples, size_t width);

struct kv_bench_figure {
	const char *name;
	const char
		/* block size's name, appended to @name; NULL: none */
		*suffix;
	double value, reference;
	/* unit of @value and @reference.  GB/s: more is better; others: less */
	const char *unit;
	const char *against; /* name of the reference; NULL: none */
	/* smallest @value / @reference that meets the goal; 0: no goal */
	double least_ratio;
	double most; /* largest @value that meets the goal; 0: no goal */
};

struct kv_bench_report;

/* @path: file of JSON lines, written at the end.  @only: report only figures
 * whose names begin with this text; NULL: all figures.  Both texts must outlive the
 * report.  -ENOMEM. */
int kv_bench_report_new(const char *path, const char *only,
			struct kv_bench_report **ret_report);

/* Print the figures to descriptor @out as a JSON array.  Return -errno if that
 * fails. */
int kv_bench_report_json(struct kv_bench_report *report, int out);

/* Print how many figures there are and how many met their goals, write the
 * file, and free @report.  Return -errno if the file cannot be written. */
int kv_bench_report_close(struct kv_bench_report *report);

/* Return whether the command line asks for the figure @name. */
bool kv_bench_report_wants(const struct kv_bench_report *report,
			   const char *name, const char *suffix);

void kv_bench_report_add(struct kv_bench_report *report,
			 const struct kv_bench_figure *figure);

/* Print a line below the previous figure, in the table only. */
void kv_bench_report_note(struct kv_bench_report *report, const char *format,
			  ...) __attribute__((format(printf, 2, 3)));

/* Add @figure with the medians of both samples in GB/s, and a note of their
 * 10th and 90th percentiles. */
void kv_bench_report_speeds(struct kv_bench_report *report,
			    struct kv_bench_figure figure,
			    struct kv_bench_sample *speeds,
			    struct kv_bench_sample *references);

/* Report that this figure is not measured because @program is missing. */
void kv_bench_report_skip(struct kv_bench_report *report, const char *name,
			  const char *suffix, const char *program);

/* ---- reference.c ---- */

struct kv_bench_memory {
	void *base;
	size_t bytes;
};

/* Allocate touched memory, in 2 MiB pages if the kernel has them.  The caller frees
 * ret_memory->base.  -ENOMEM. */
int kv_bench_memory_map(size_t bytes, struct kv_bench_memory *ret_memory);

/* Allocate touched memory of a memfd, in 2 MiB pages if some are free, sealed against
 * shrinking, growing and new writers if @sealed.  The caller unmaps ret_memory->base and
 * closes *@ret_fd.  -errno. */
int kv_bench_memory_share(size_t bytes, bool sealed,
			  struct kv_bench_memory *ret_memory, int *ret_fd);

struct kv_bench_piece {
	void *dst;
	const void *src;
	size_t bytes;
};

struct kv_bench_crew;

/* @threads: copying threads, the caller's included.  -ENOMEM, -EAGAIN. */
int kv_bench_crew_new(unsigned threads, struct kv_bench_crew **ret_crew);
void kv_bench_crew_free(struct kv_bench_crew *crew); /* takes NULL */

/* Copy every piece by memcpy.  Return the nanoseconds until all are copied. */
uint64_t kv_bench_crew_copy(struct kv_bench_crew *crew,
			    const struct kv_bench_piece *pieces, size_t n);

/*
 * Run fio on the file @bench->dir/fio in blocks of @block, set up like the
 * daemon: O_DIRECT, io_uring, queue depth 32, 2 MiB pages, registered buffers.
 * @writers 0: read @bytes of the file.  Else replace the file by one that is
 * allocated but never written, let each writer write its part of @bytes and
 * fsync, and remove the file.  *@ret_speed: GB/s.  -EIO: fio failed.
 */
int kv_bench_fio(struct kv_bench *bench, uint64_t block, uint64_t bytes,
		 unsigned writers, double *ret_speed);

/* ---- rig.c ---- */

/* A block size.  Each block has tensors k and v of @layers times 32 KiB. */
struct kv_bench_size {
	const char *suffix;
	unsigned layers;
	size_t blocks; /* number of blocks, together about 280 MiB */
};

#define KV_BENCH_LAYER 32768u /* K or V: 16 tokens, 8 heads, 128 BF16 */
#define KV_BENCH_HEAD 4096u   /* bytes of one of these 8 heads */
#define KV_BENCH_GROUP 127u   /* blocks of one load or lease */
#define KV_BENCH_SPACE "bench"

/* Return the bytes of a block's tensors. */
static inline uint64_t kv_bench_payload(const struct kv_bench_size *size)
{
	return 2ull * size->layers * KV_BENCH_LAYER;
}

enum kv_bench_pool {
	KV_BENCH_PAGES,	 /* pool whose blocks are one run of bytes */
	KV_BENCH_SPLIT,	 /* pool with a run for K and one for V */
	KV_BENCH_LAYERS, /* pool with a run for each layer, as in vLLM */
	KV_BENCH_HEADS,	 /* pool with 4 KiB runs, by head and layer */
	KV_BENCH_POOLS,
};

/* A daemon with one space of blocks, and an engine's pools. */
struct kv_bench_rig {
	struct kv_bench *bench;
	const struct kv_bench_size *size;
	struct kv_bench_daemon daemon;
	struct kv_bench_crew *crew;
	struct kv_bench_memory pages, spare; /* each has room for all blocks */
	kvfs_session *session;
	kvfs_space *space;
	kvfs_pool *pools[KV_BENCH_POOLS];
	/* array of size->blocks keys of durable blocks */
	kvfs_key *keys;
	uint32_t next_token;
	uint64_t saved; /* number of blocks in the store */
};

/* Start the daemon and save @size->blocks blocks under rig->keys, durable. */
int kv_bench_rig_open(struct kv_bench *bench, const struct kv_bench_size *size,
		      struct kv_bench_rig *rig);
/* Call this also after kv_bench_rig_open has failed. */
void kv_bench_rig_close(struct kv_bench_rig *rig);

/* Open a session, the space @name on it, and the four pools over rig->pages. */
int kv_bench_rig_open_space(struct kv_bench_rig *rig, const char *name);
void kv_bench_rig_close_space(struct kv_bench_rig *rig); /* and pools */

/* Register a pool like KV_BENCH_PAGES over @memory of the descriptor @fd. */
int kv_bench_rig_pool(struct kv_bench_rig *rig,
		      const struct kv_bench_memory *memory, int fd,
		      kvfs_pool **ret_pool);

/* Compute the keys of a chain of @n blocks that were never saved. */
int kv_bench_rig_keys(struct kv_bench_rig *rig, kvfs_key *ret_keys, size_t n);

/* Save all pages of @pool under @keys.  @ret_sealed, @ret_durable: nanoseconds
 * from the call until all blocks were sealed, and durable. */
int kv_bench_rig_save(struct kv_bench_rig *rig, kvfs_pool *pool,
		      const kvfs_key *keys, uint64_t *ret_sealed,
		      uint64_t *ret_durable);

/* Lease @n blocks from rig->keys[first] on.  -EIO: not all are leased. */
int kv_bench_rig_acquire(struct kv_bench_rig *rig, size_t first, size_t n,
			 kvfs_lease **ret_lease);

/* Compare the blocks in @lease, a lease of all rig->keys, with the saved bytes.
 * 0, or -EBADMSG. */
int kv_bench_rig_verify(struct kv_bench_rig *rig, kvfs_lease *lease);

/*
 * Evict all rig->keys from DRAM to SSD and wait until the arena has settled.
 * -EBUSY: blocks are left in DRAM
 */
int kv_bench_rig_chill(struct kv_bench_rig *rig);

/* Format the path of a block's file below the directory @root. */
void kv_bench_rig_path(const char *root, const kvfs_key *key, char *ret_path,
		       size_t room);

/* ---- figures ---- */

/* Each function measures the figures named beside it on @rig, reports them, and
 * leaves rig->keys durable; -errno: the measurement failed. */
int kv_bench_load(struct kv_bench_rig *rig); /* load_dram* */
int kv_bench_lease(struct kv_bench_rig *rig);
int kv_bench_cold(struct kv_bench_rig *rig);	   /* load_ssd_cold */
int kv_bench_probe(struct kv_bench_rig *rig);	   /* probe128_* */
int kv_bench_save(struct kv_bench_rig *rig);	   /* save_sealed, _durable */
int kv_bench_save_heads(struct kv_bench_rig *rig); /* save_sealed_4k */
int kv_bench_save_lent(struct kv_bench_rig *rig);  /* save_sealed_fd, _read */
int kv_bench_writers(struct kv_bench_rig *rig);	   /* save_durable_4w */
int kv_bench_mount(struct kv_bench_rig *rig);	   /* read_mount_* */
int kv_bench_anonymous(struct kv_bench_rig *rig);  /* memory_anon */

/* Measure mount_*_1m on a store of its own. */
int kv_bench_million(struct kv_bench *bench);

#endif
