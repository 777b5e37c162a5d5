/* SPDX-License-Identifier: Apache-2.0 */
/*
 * standin.h - a driver for tests: what its files share.
 *
 * Device memory is host memory.  A device address lies in a range that cannot
 * be read or written; the bytes are at a fixed distance from the address
 * (DEVICE_SHIFT below).  So a program that uses a device address on the host
 * dies at once, as with a real driver.
 *
 * A stream is a thread that runs its operations in order, each after a random
 * pause and after its dependencies.  So streams overtake each other unless they
 * are ordered, and copies read and write memory late.
 */
#ifndef KV_TESTS_GPU_STANDIN_STANDIN_H
#define KV_TESTS_GPU_STANDIN_STANDIN_H

#include <pthread.h>
#include <string.h>

#include "common/kv.h"
#include "tests/gpu/abi.h"
#include "tests/gpu/hooks.h"

/* ---- state.c ---- */

#define MAX_DEVICES 2

/* Kinds of calls that may wait for all work of their context. */
enum sync {
	SYNC_LAUNCH, /* first launch of a kernel */
	SYNC_LOAD,   /* loading and unloading a module */
	SYNC_ALLOC,
	SYNC_FREE,
	SYNC_REGISTER,
	SYNC_UNREGISTER,
	N_SYNCS
};

struct settings {
	unsigned delay_us, seed;
	int devices;
	bool read_only, mem_ops, pageable;
	uint64_t memory;
	/* kinds of calls that wait for all work of their context, one bit for
	 * each enum sync */
	unsigned syncs;
	/* number of hardware queues per priority; 0: one per stream */
	unsigned queues;
	unsigned register_us; /* microseconds to register a MiB */
	bool one_host_thread;
	/* threads can still push the context of a broken device */
	bool enterable;
	unsigned patience_s;
	int arch, version;
};
extern struct settings settings;

/* Guards all state of the stand-in but its counters. */
extern pthread_mutex_t big_lock;
/* Signals that an operation has ended, or that a stream got a new operation. */
extern pthread_cond_t changed;

enum needs { NOTHING, INIT, CONTEXT };

/* Begin a call.  Return 0, or the error that the call must return. */
CUresult enter(const char *call, enum needs needs);
/* Return the current context of this thread; NULL: none. */
CUcontext current_context(void);
/* Print and count a bug of the caller.  Return @code. */
CUresult bug(CUresult code, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Let all later calls fail with @code, because an operation of a stream has
 * failed, and drop all operations that have not begun. */
void break_device(CUresult code);
bool device_is_broken(void);
extern __thread bool in_host_function;
/* capture mode of this thread; 0: global, 2: relaxed */
extern __thread int capture_mode;
extern uint64_t copied[2];

/* ---- device.c ---- */

struct CUctx_st {
	int device;
	unsigned refs; /* big_lock */
	/* a synchronising call holds the context's lock; guarded by big_lock */
	bool held;
	bool was_reset; /* since the last retain; guarded by big_lock */
};
/* Return the error that calls get in this context. */
CUresult context_check(CUcontext ctx, const char *call);
CUcontext context_of(int device);

/* ---- hold.c ---- */

/* The lock of a context.  A synchronising call holds the lock until all earlier
 * work of the context has ended, and until its own end.  Every other call of
 * the context waits for the lock, without holding it. */
void context_pass(CUcontext ctx);
/* Begin a call of the kind @sync.  If calls of this kind synchronise, hold the
 * context's lock and set *@ret_held. */
void context_hold(enum sync sync, CUcontext *ret_held);
void context_release(CUcontext *held);

/* ---- memory.c ---- */

extern struct standin_alive alive; /* big_lock */

#define DEVICE_POISON_NEW 0xcd
#define DEVICE_POISON_OLD 0xdd

enum range_kind { DEVICE, RESERVED, HOST, REGISTERED };

struct range {
	struct range *next;
	enum range_kind kind;
	uintptr_t base;
	size_t bytes;
	int device;
	unsigned flags;
	uint64_t id; /* no two allocations of the process have the same */
};

/* Return the live allocation that contains @bytes at @at, or NULL. */
const struct range *range_of_locked(uintptr_t at, size_t bytes);
/* Return whether a live allocation has any of the @bytes at @at. */
bool range_touches_locked(uintptr_t at, size_t bytes);
/* Return where this process has the bytes of a device or host address. */
void *bytes_at(uintptr_t at);
bool is_device_address(uintptr_t at);
/* Return the first of @bytes addresses that no allocation has had before, or none
 * since the last reset of a context; 0: none are left. */
uintptr_t device_addresses_locked(size_t bytes, size_t align);
const struct range *range_add_locked(enum range_kind kind, uintptr_t base,
				     size_t bytes, unsigned flags, int device);
/* Remove all allocations of a context that is reset. */
void ranges_forget_locked(int device);
/* Remove the allocation that begins at @base.  Return false if there is none,
 * else its size in @ret_bytes. */
bool range_remove_locked(enum range_kind kind, uintptr_t base,
			 size_t *ret_bytes);

/* ---- stream.c ---- */

struct op;
struct capture;

/* A moment in a stream: the end of its first @seq operations. */
struct moment {
	/* the stream, with a reference; NULL: the moment has passed */
	struct CUstream_st *stream;
	uint64_t seq;
};

#define MAX_DEPENDENCIES 64

struct op {
	struct op *next;
	/* function to call without big_lock; NULL: nothing to do */
	void (*run)(struct op *op);
	bool is_work; /* true: standin_hold() holds up this operation */
	/* true: the operation blocks its whole hardware queue while it runs */
	bool is_wait;
	uint64_t ticket; /* place of the operation in its hardware queue */
	struct moment after[MAX_DEPENDENCIES];
	unsigned n_after;
	/* Arguments of the function @run. */
	uintptr_t dst, src;
	size_t bytes;
	uint32_t value;
	unsigned flags;
	CUhostFn *fn;
	void *arg;
	void *parameters; /* memory that is freed with the operation */
	size_t parameters_bytes;
};

struct op *op_new(void (*run)(struct op *op));
void op_free(struct op *op);
/* Queue @op, which then belongs to the stream.  If @ret is not NULL, store the
 * moment at which @op ends. */
CUresult give(CUstream stream, struct op *op, struct moment *ret);
CUresult give_and_wait(CUstream stream, struct op *op);
/* Return the stream for which a handle stands; the handle may be 0 or that of
 * the legacy stream.  NULL: there is no such stream. */
struct CUstream_st *stream_of_locked(CUstream handle);
/* Return the context of a stream; NULL: there is no such stream. */
CUcontext context_of_stream(CUstream handle);
/* Destroy all streams of a context that is reset; the same for events. */
void streams_forget_locked(CUcontext ctx);
void events_forget_locked(CUcontext ctx);
/* Wait until all work given to the context has ended. */
void wait_for_context_locked(CUcontext ctx);
/* Get or set the capture of a stream; NULL: no capture. */
struct capture **stream_capture_locked(struct CUstream_st *stream);
/* Return the active capture that work of the legacy stream would disturb, or
 * NULL. */
struct capture *legacy_capture_locked(struct CUstream_st *stream);
/* Take all streams out of the capture, so that their operations run again. */
void streams_leave_locked(struct capture *capture);
void moment_put_locked(struct moment *moment);
bool moment_is_past_locked(const struct moment *moment);
struct moment now_in_locked(struct CUstream_st *stream);
void wait_for_all(void);
void wait_until_past_locked(const struct moment *moment);

/* ---- event.c ---- */

/* Return the moment for which @event stands, with a reference; {NULL}: the
 * event was never recorded.  CU_CAPTURED_EVENT: the event is a place in the
 * capture *@ret_capture. */
CUresult event_moment_locked(CUevent event, struct moment *ret,
			     uint64_t *ret_capture);

/* ---- launch.c ---- */

/* Unload all modules of a context that is reset. */
void modules_forget_locked(CUcontext ctx);

/* ---- image.c ---- */

/* Properties of a kernel that limit its launches. */
struct kernel {
	unsigned registers;   /* registers per thread; 0: unknown */
	unsigned max_threads; /* most threads of a block */
	unsigned local;	      /* bytes of stack and spills per thread */
};

/* Check the image of a module.  Return CU_OK, CU_INVALID_IMAGE, or CU_NO_BINARY
 * if it has no code for the device. */
CUresult image_check(const void *image);
void image_kernel(const void *image, const char *name, struct kernel *ret);

/* ---- capture.c ---- */

/* Return whether a capture forbids an unsafe call of this thread; captures that
 * the call would disturb become invalid. */
bool capture_forbids(void);
/* Add @op to the capture of its stream as a node. */
CUresult capture_take_locked(struct capture *capture, struct op *op);
/* Return the capture in which an event was recorded; NULL: it has ended. */
struct capture *capture_find_locked(uint64_t id);
uint64_t capture_id(const struct capture *capture);
/* Let another stream join the capture. */
void capture_join_locked(struct capture *capture, struct CUstream_st *stream);
/* Invalidate the capture, after a call that captures forbid. */
void capture_spoil_locked(struct capture *capture);

/* ---- copy.c ---- */

/* Return whether the device may access these bytes; if not, let all later calls
 * fail. */
bool may_touch(uintptr_t at, size_t bytes, const char *what);
/* Like may_touch(), for a kernel: adjacent registrations of host memory count
 * as one.  @write: the kernel writes. */
bool kernel_may_touch(uintptr_t at, size_t bytes, bool write, const char *what);

#endif
