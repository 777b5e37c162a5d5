/* SPDX-License-Identifier: Apache-2.0 */
/*
 * standin.h - a driver for tests: what its files share.
 *
 * Device memory is host memory.  A device address is in a range of its own
 * where nothing can be read or written; the bytes are at a fixed distance from
 * it (DEVICE_SHIFT below), so that a program that takes a device address for
 * one of the host dies at once, as it would.
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
	SYNC_LAUNCH, /* the first one of a kernel */
	SYNC_LOAD,   /* of a module, and its end */
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
	unsigned syncs;	      /* a bit each; see enum sync */
	unsigned queues;      /* of a priority; 0: one a stream */
	unsigned register_us; /* that registering a MiB takes */
	bool one_host_thread;
	unsigned patience_s;
	int arch, version;
};
extern struct settings settings;

/* Over everything that changes, but the counters. */
extern pthread_mutex_t big_lock;
/* Something is over, or has been given. */
extern pthread_cond_t changed;

enum needs { NOTHING, INIT, CONTEXT };

/* Every call begins with this: 0, or what it must return. */
CUresult enter(const char *call, enum needs needs);
/* This thread's, inside a call that needs one. */
CUcontext current_context(void);
/* Say it, and count it.  Returns @code, for convenience. */
CUresult bug(CUresult code, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Where an operation of a stream went wrong: from now on all calls say so. */
void break_device(CUresult code);
extern __thread bool in_host_function;
extern __thread int capture_mode; /* of this thread; 0: global, 2: relaxed */
extern uint64_t copied[2];

/* ---- device.c ---- */

struct CUctx_st {
	int device;
	unsigned refs; /* big_lock */
	bool held;     /* big_lock; a call synchronises */
};
bool context_is_live(CUcontext ctx);
CUcontext context_of(int device);

/* ---- hold.c ---- */

/*
 * The lock of a context.  A call that synchronises holds it: until all work
 * that the context has been given is over, and on to its own end.  Every other
 * call of the context waits for that, and holds it for no time.
 */
void context_pass(CUcontext ctx);
/* For a call of this kind; where that does not synchronise *@ret_held stays. */
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
};

/* Return the live stride of memory that contains @bytes at @at, or NULL. */
const struct range *range_of_locked(uintptr_t at, size_t bytes);
/* Whether any byte of it is in a live stride of memory. */
bool range_touches_locked(uintptr_t at, size_t bytes);
/* Where the bytes of an address, device or host, are. */
void *bytes_at(uintptr_t at);
bool is_device_address(uintptr_t at);
/* Addresses that no other stride has ever had; 0: there are none left. */
uintptr_t device_addresses_locked(size_t bytes, size_t align);
const struct range *range_add_locked(enum range_kind kind, uintptr_t base,
				     size_t bytes, unsigned flags);
/* The stride of this kind that begins at @base is no more; NULL: there was
 * none, else its size. */
bool range_remove_locked(enum range_kind kind, uintptr_t base,
			 size_t *ret_bytes);

/* ---- stream.c ---- */

struct op;
struct capture;

/* A moment in a stream: when its first @seq operations are over. */
struct moment {
	struct CUstream_st *stream; /* a reference; NULL: long past */
	uint64_t seq;
};

#define MAX_DEPENDENCIES 64

struct op {
	struct op *next;
	void (*run)(struct op *op); /* without big_lock; may be NULL */
	bool is_work;		    /* held by standin_hold */
	bool is_wait;	 /* of the queue itself, as long as it runs */
	uint64_t ticket; /* of its stream's queue */
	struct moment after[MAX_DEPENDENCIES];
	unsigned n_after;
	/* Arguments of @run. */
	uintptr_t dst, src;
	size_t bytes;
	uint32_t value;
	unsigned flags;
	CUhostFn *fn;
	void *arg;
	void *parameters; /* freed with it */
	size_t parameters_bytes;
};

struct op *op_new(void (*run)(struct op *op));
void op_free(struct op *op);
/* Takes @op.  @ret, unless NULL, is when it will be over. */
CUresult give(CUstream stream, struct op *op, struct moment *ret);
CUresult give_and_wait(CUstream stream, struct op *op);
/* The stream behind a handle, 0 and the legacy one included; NULL: none. */
struct CUstream_st *stream_of_locked(CUstream handle);
/* NULL: no such stream. */
CUcontext context_of_stream(CUstream handle);
/* Until all work that the context has been given is over. */
void wait_for_context_locked(CUcontext ctx);
/* Get the capture of a stream, or NULL; set it. */
struct capture **stream_capture_locked(struct CUstream_st *stream);
/* The capture that an operation of the legacy stream would be mixed into. */
struct capture *legacy_capture_locked(struct CUstream_st *stream);
/* No stream is in the capture any more. */
void streams_leave_locked(struct capture *capture);
void moment_put_locked(struct moment *moment);
bool moment_is_past_locked(const struct moment *moment);
struct moment now_in_locked(struct CUstream_st *stream);
void wait_for_all(void);
void wait_until_past_locked(const struct moment *moment);

/* ---- event.c ---- */

/* Return the operation that @event stands for, referenced; {NULL}: none.
 * CU_CAPTURED_EVENT: a place in the capture *@ret_capture. */
CUresult event_moment_locked(CUevent event, struct moment *ret,
			     uint64_t *ret_capture);

/* ---- image.c ---- */

/* Check the arguments of a launch. */
struct kernel {
	unsigned registers;   /* of a thread; 0: not known */
	unsigned max_threads; /* of a block */
	unsigned local;	      /* bytes of a thread's stack and spills */
};

/* CU_OK; CU_NO_BINARY: nothing in it is for the device; CU_INVALID_IMAGE. */
CUresult image_check(const void *image);
void image_kernel(const void *image, const char *name, struct kernel *ret);

/* ---- capture.c ---- */

/* Whether this thread may not do what could disturb a capture; captures that
 * it would have disturbed are no good from then on. */
bool capture_forbids(void);
/* @op is given to a stream that is being captured: becomes a node. */
CUresult capture_take_locked(struct capture *capture, struct op *op);
/* The capture that an event was recorded in; NULL: it is over. */
struct capture *capture_find_locked(uint64_t id);
uint64_t capture_id(const struct capture *capture);
/* Another stream joins it. */
void capture_join_locked(struct capture *capture, struct CUstream_st *stream);
/* Something was mixed into it that is not its. */
void capture_spoil_locked(struct capture *capture);

/* ---- copy.c ---- */

/* An operation is about to touch these bytes of the device: false, and the
 * device is broken, if they are not there. */
bool may_touch(uintptr_t at, size_t bytes, const char *what);
/* A kernel is, which takes memory of the host that is registered in several
 * strides as one; @write: and writes them. */
bool kernel_may_touch(uintptr_t at, size_t bytes, bool write, const char *what);

#endif
