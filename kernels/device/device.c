/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - devices: "host" and plug-in libraries, checked calls of a device,
 * and the copy threads.
 *
 * OWNS      the libraries of plug-ins, which are never unloaded, even if they
 *           are rejected: their threads may run.  The copy threads and the
 *           queue of jobs; not the jobs.
 *
 * INVARIANTS
 *   (1) Every call of a device that can fail is made here.
 *   (2) A table that passed kv_guard_check has each call that is used: the call
 *       is required, or required by another one, or its caller checks.
 *   (3) Every job submitted is run once, also when the copier is freed.
 *   (4) Jobs are queued in order of arrival; a job with k older ones begins
 *       after at most KV_COPIER_FAIR * (k + 1) others.
 *   (5) best is the highest rank in the queue; INT64_MIN: the queue is empty.
 *
 * LOCKING   none for devices: the dynamic linker loads a library once, and
 *           kvfs_device.h says which locks a call may hold.  copier->lock guards
 *           the queue; a leaf, released while a job runs.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <xxhash.h>

#include "kernels/device/device.h"
#include "kernels/kvfs.h"
#include "common/thread.h"

#define NAME_MAX_LEN 31
#define WHY 512 /* bytes: a path and the message of the linker */

/* Print why there is no device, because the error alone does not tell, but not
 * twice in a row: callers without a device ask again.  Return NULL. */
static const struct kvfs_device *refuse(const char *name, const char *why)
{
	static _Atomic XXH64_hash_t printed;
	char line[WHY + 128];
	XXH64_hash_t hash;

	snprintf(line, sizeof(line), "libkvfs: no device \"%.*s\": %s",
		 NAME_MAX_LEN, name, why);
	hash = XXH64(line, strlen(line), 0);
	if (atomic_exchange(&printed, hash) != hash)
		fprintf(stderr, "%s\n", line);
	return NULL;
}

/* Look for @library in the directory of this library or program: builds have
 * their own plug-ins. */
static bool find_beside(const char *library, char *ret_path, size_t room)
{
	Dl_info self;
	const char *slash;
	int n;

	if (dladdr((void *)(uintptr_t)kv_device_find, &self) == 0 ||
	    !self.dli_fname)
		return false;
	slash = strrchr(self.dli_fname, '/');
	if (!slash)
		return false;
	n = snprintf(ret_path, room, "%.*s/%s", (int)(slash - self.dli_fname),
		     self.dli_fname, library);
	return n > 0 && (size_t)n < room && access(ret_path, F_OK) == 0;
}

static const struct kvfs_device *find_plugin(const char *name)
{
	char library[NAME_MAX_LEN + 32], symbol[NAME_MAX_LEN + 32], path[4096];
	const struct kvfs_device *device;
	char why[WHY];
	void *opened;

	snprintf(library, sizeof(library), "libkvfs-%s.so.1", name);
	/* A library beside this one is used even if it cannot be loaded: another
	 * one would be of another build. */
	opened = dlopen(find_beside(library, path, sizeof(path)) ? path
								 : library,
			RTLD_NOW | RTLD_LOCAL);
	if (!opened)
		return refuse(name, dlerror());
	snprintf(symbol, sizeof(symbol), "kvfs_device_%s", name);
	device = dlsym(opened, symbol);
	if (!device) {
		snprintf(why, sizeof(why), "its library has no symbol %s",
			 symbol);
		return refuse(name, why);
	}
	if (kv_guard_check(device, name, why, sizeof(why)) < 0)
		return refuse(name, why);
	return device;
}

const struct kvfs_device *kv_device_find(const char *name)
{
	size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyz");
	char plugin[NAME_MAX_LEN + 1];

	if (strcmp(name, kv_device_host.name) == 0)
		return &kv_device_host;
	if (len == 0 || len > NAME_MAX_LEN ||
	    (name[len] != '\0' && name[len] != ':'))
		return refuse(name, "that is no name of a device");
	memcpy(plugin, name, len);
	plugin[len] = '\0';
	return find_plugin(plugin);
}

/* ---- checked calls ---- */

#define ERRNO_LAST 4095 /* the highest of Linux */

/* A device that has the call @has must have the call @needs. */
struct rule {
	const char *has; /* NULL: every device must */
	size_t has_at;
	const char *needs;
	size_t needs_at;
};

#define AT(call) offsetof(struct kvfs_device, call)
#define NEEDED(call)                     \
	{                                \
		NULL, 0, #call, AT(call) \
	}
#define WITH(has, needs)                         \
	{                                        \
#has, AT(has), #needs, AT(needs) \
	}

static const struct rule rules[] = {
	NEEDED(info),
	NEEDED(load),
	NEEDED(save),
	WITH(attach, detach),
	WITH(detach, attach),
	WITH(needs_writable, attach),
	WITH(event_wait, event_wait_is_done),
	WITH(event_wait, event_wait_free),
	WITH(event_wait_is_done, event_wait),
	WITH(event_wait_free, event_wait),
	WITH(order, event_wait),
	WITH(default_stream, event_wait),
	WITH(reserve, grow),
	WITH(reserve, release),
	WITH(grow, reserve),
	WITH(release, reserve),
	WITH(take_fd, reserve),
};

static bool has_call(const struct kvfs_device *device, size_t at)
{
	void (*call)(void);

	memcpy(&call, (const char *)device + at, sizeof(call));
	return call;
}

int kv_guard_check(const struct kvfs_device *device, const char *name,
		   char *ret_why, size_t room)
{
	const struct rule *rule;

	/* In another version only this field is known. */
	if (device->version != KVFS_DEVICE_VERSION) {
		snprintf(ret_why, room,
			 "it is of version %u of kvfs_device.h, and this "
			 "library of %u",
			 device->version, KVFS_DEVICE_VERSION);
		return -ENODEV;
	}
	if (!device->name || strcmp(device->name, name) != 0) {
		snprintf(ret_why, room, "its table has the name \"%s\"",
			 device->name ? device->name : "");
		return -ENODEV;
	}
	for (rule = rules; rule < rules + KV_ARRAY_LEN(rules); rule++) {
		if ((rule->has && !has_call(device, rule->has_at)) ||
		    has_call(device, rule->needs_at))
			continue;
		if (rule->has)
			snprintf(ret_why, room, "it has %s, but no %s",
				 rule->has, rule->needs);
		else
			snprintf(ret_why, room, "it has no %s", rule->needs);
		return -ENODEV;
	}
	return 0;
}

/* Return @r if it is a valid result, else -EIO. */
static int checked(int r)
{
	if (r > 0 || r < -ERRNO_LAST || r == -EAGAIN || r == -EINPROGRESS)
		return -EIO;
	return r;
}

int kv_guard_open(const struct kvfs_device *device,
		  const struct kvfs_pool_desc *desc, void **ret_pool)
{
	return device->open ? checked(device->open(desc, ret_pool)) : 0;
}

int kv_guard_load(const struct kvfs_device *device, void *pool,
		  const struct kvfs_batch *batch)
{
	return device->load(pool, batch) == 0 ? 0 : -EIO;
}

int kv_guard_save(const struct kvfs_device *device, void *pool,
		  const struct kvfs_batch *batch)
{
	return device->save(pool, batch) == 0 ? 0 : -EIO;
}

int kv_guard_event_wait(const struct kvfs_device *device, void *pool,
			void *stream, void *event, void **ret_event_wait)
{
	void *made = NULL;
	int r = checked(device->event_wait(pool, stream, event, &made));

	if (r == 0 && !made)
		r = -EIO;
	if (r == 0)
		*ret_event_wait = made;
	return r;
}

int kv_guard_order(const struct kvfs_device *device, void *event_wait,
		   void *stream)
{
	return checked(device->order(event_wait, stream));
}

int kv_guard_staging(const struct kvfs_device *device, void *pool,
		     uint64_t bytes, unsigned buffers)
{
	return device->staging ? checked(device->staging(pool, bytes, buffers))
			       : 0;
}

void kv_guard_info(const struct kvfs_device *device, void *pool,
		   struct kvfs_pool_info *ret_info)
{
	struct kvfs_pool_info known = {.size = sizeof(known)};

	device->info(pool, &known);
	*ret_info = (struct kvfs_pool_info){
		.size = sizeof(*ret_info),
		.device = device->name,
		.path = known.path ? known.path : "",
		.reason = known.reason ? known.reason : "",
		.bytes_pinned = known.bytes_pinned,
		.bytes_registered = known.bytes_registered,
		.bytes_refused = known.bytes_refused,
		.buffers = known.buffers,
		.buffer_bytes = known.buffer_bytes,
	};
}

int kv_guard_reserve(const struct kvfs_device *device, const char *name,
		     uint64_t bytes, uint64_t max_bytes, void **ret_memory,
		     void **ret_base)
{
	void *memory = NULL, *base = NULL;
	int r;

	if (!device->reserve)
		return -EOPNOTSUPP;
	r = checked(device->reserve(name, bytes, max_bytes, &memory, &base));
	if (r < 0)
		return r;
	if (!memory)
		return -EIO;
	if (!base) {
		device->release(memory);
		return -EIO;
	}
	*ret_memory = memory;
	*ret_base = base;
	return 0;
}

int kv_guard_grow(const struct kvfs_device *device, void *memory,
		  uint64_t bytes)
{
	return checked(device->grow(memory, bytes));
}

int kv_guard_take_fd(const struct kvfs_device *device, void *memory)
{
	int fd = device->take_fd ? device->take_fd(memory) : -1;

	return fd < 0 ? -1 : fd;
}

/* ---- copy threads ---- */

#define THREADS_MAX 4

struct kv_copier {
	pthread_mutex_t lock;
	pthread_cond_t work;
	TAILQ_HEAD(, kv_job) jobs; /* lock */
	_Atomic int64_t best;	   /* written with lock */
	unsigned picks;		   /* lock: since the oldest job was taken */
	bool stop;		   /* lock */
	unsigned n_threads;	   /* fixed after new */
	pthread_t threads[THREADS_MAX]; /* fixed after new */
};

static int64_t rank(const struct kv_job *job)
{
	return (job->kind == KV_JOB_LOAD ? (int64_t)1 << 32 : 0) +
	       job->priority;
}

static struct kv_job *first_of_best_locked(const struct kv_copier *copier)
{
	struct kv_job *job, *best = TAILQ_FIRST(&copier->jobs);

	TAILQ_FOREACH(job, &copier->jobs, others)
		if (rank(job) > rank(best))
			best = job;
	return best;
}

static struct kv_job *take_job_locked(struct kv_copier *copier)
{
	struct kv_job *job = first_of_best_locked(copier), *best;

	if (!job)
		return NULL;
	if (++copier->picks >= KV_COPIER_FAIR) {
		job = TAILQ_FIRST(&copier->jobs);
		copier->picks = 0;
	}
	TAILQ_REMOVE(&copier->jobs, job, others);
	best = first_of_best_locked(copier);
	atomic_store(&copier->best, best ? rank(best) : INT64_MIN);
	return job;
}

static void *run_jobs(void *arg)
{
	struct kv_copier *copier = arg;
	struct kv_job *job;

	pthread_mutex_lock(&copier->lock);
	for (;;) {
		job = take_job_locked(copier);
		if (!job && copier->stop)
			break;
		if (!job) {
			pthread_cond_wait(&copier->work, &copier->lock);
			continue;
		}
		pthread_mutex_unlock(&copier->lock);
		job->run(job);
		pthread_mutex_lock(&copier->lock);
	}
	pthread_mutex_unlock(&copier->lock);
	return NULL;
}

static void copier_freep(struct kv_copier **copier)
{
	kv_copier_free(*copier);
}

int kv_copier_new(struct kv_copier **ret_copier)
{
	_cleanup_(copier_freep) struct kv_copier *copier = NULL;
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned want = (unsigned)KV_MAX(KV_MIN(online, THREADS_MAX), 1);
	char name[16];
	int r;

	copier = calloc(1, sizeof(*copier));
	if (!copier)
		return -ENOMEM;
	pthread_mutex_init(&copier->lock, NULL);
	pthread_cond_init(&copier->work, NULL);
	TAILQ_INIT(&copier->jobs);
	atomic_init(&copier->best, INT64_MIN);
	for (unsigned i = 0; i < want; i++) {
		snprintf(name, sizeof(name), "kvfs-copy%u", i);
		r = kv_thread_start(&copier->threads[i], name, run_jobs,
				    copier);
		if (r < 0)
			return r;
		copier->n_threads++;
	}
	*ret_copier = kv_steal(copier);
	return 0;
}

void kv_copier_free(struct kv_copier *copier)
{
	if (!copier)
		return;
	pthread_mutex_lock(&copier->lock);
	copier->stop = true;
	pthread_cond_broadcast(&copier->work);
	pthread_mutex_unlock(&copier->lock);
	for (unsigned i = 0; i < copier->n_threads; i++)
		pthread_join(copier->threads[i], NULL);
	pthread_cond_destroy(&copier->work);
	pthread_mutex_destroy(&copier->lock);
	free(copier);
}

unsigned kv_copier_threads(const struct kv_copier *copier)
{
	return copier->n_threads;
}

void kv_copier_submit(struct kv_copier *copier, struct kv_job *job)
{
	pthread_mutex_lock(&copier->lock);
	TAILQ_INSERT_TAIL(&copier->jobs, job, others);
	if (rank(job) > atomic_load(&copier->best))
		atomic_store(&copier->best, rank(job));
	pthread_cond_signal(&copier->work);
	pthread_mutex_unlock(&copier->lock);
}

bool kv_copier_presses(struct kv_copier *copier, const struct kv_job *job)
{
	return atomic_load(&copier->best) > rank(job);
}
