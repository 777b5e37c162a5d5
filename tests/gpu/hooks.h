/* SPDX-License-Identifier: Apache-2.0 */
/* hooks.h - calls of the stand-in driver that real drivers do not have.  Tests
 * find the calls by dlsym(3). */
#ifndef KV_TESTS_GPU_HOOKS_H
#define KV_TESTS_GPU_HOOKS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Settings, as NAME=VALUE[,NAME=VALUE...]; also taken from the environment's
 * KVFS_STANDIN when the driver is initialised.  Returns 0, or -1: unknown.
 *
 *   delay=USEC    longest pause before an operation begins (default 100)
 *   seed=N        seed of the random pauses
 *   devices=N     number of devices (default 1, at most 2)
 *   readonly=0|1  whether read-only memory can be registered (default 0)
 *   memops=0|1    whether streams can wait for values (default 1)
 *   pageable=0|1  whether asynchronous copies take memory that is not
 *                 registered, and are synchronous then (default 1)
 *   memory=BYTES  memory of a device (default 8 GiB)
 *   fail=CALL:N:CODE  the N-th call of CALL from now on fails (1: the next)
 *   once=N:CODE  the N-th call from now on fails, whatever it is but those that
 *                 leave a caller no choice: a pop of a context and an unmap
 *   break=N:CODE  the device breaks at the N-th call from now on, whatever it is:
 *                 that call and all later ones fail, and submitted work that
 *                 has not begun is dropped
 *   enterable=0|1 whether threads can still push the context of a broken device
 *                 (default 1)
 *   arch=N        the device is an sm_N (default 90)
 *   version=N     version of the driver (default 13000)
 *
 * The next settings select behaviour that drivers may have, though most runs do
 * not show it.  strict=1 (the default) turns all of them on, with readonly=0;
 * strict=0 turns them off, with readonly=1:
 *
 *   sync=KIND[+KIND...]|all|none  calls of these kinds wait until all work of
 *                 their context has ended, and other threads' calls of the
 *                 context wait as well: launch (the first launch of each
 *                 kernel), load (of a module), alloc, free, register,
 *                 unregister
 *   queues=N      hardware queues per priority, shared by the streams of that
 *                 priority: an operation that waits at the head of a queue
 *                 holds up the queue; 0: one queue per stream.  strict=1:
 *                 CUDA_DEVICE_MAX_CONNECTIONS, or 8
 *   cost=USEC     time to register a MiB (strict=1: 100)
 *   hostthread=0|1  one thread calls the host functions of all streams
 *   patience=SEC  abort the process for a deadlock if a call waits, and no
 *                 operation ends for this long (60)
 *
 * Example: `KVFS_STANDIN=strict=0,sync=free test_event_wait`.
 */
int standin_set(const char *settings);

/* Hold up copies, fills and kernels of all streams, or let them run. */
void standin_hold(bool held);

/* Return the number of operations of streams that are queued or running. */
uint64_t standin_pending(void);

struct standin_alive {
	uint64_t streams, events, modules, contexts;
	uint64_t device, host, registered,
		reserved; /* number of live allocations */
	uint64_t device_bytes, host_bytes, registered_bytes;
};
void standin_alive(struct standin_alive *ret_alive);

/* Return the number of bugs of the caller: uses that a real device punishes
 * late or not at all, such as copies of freed memory, use of destroyed handles,
 * calls from a stream's host function or from a fork's child.  Each bug is
 * printed on stderr. */
uint64_t standin_bugs(void);
/* Repair the device, and forget the bugs so far, which the test caused on
 * purpose. */
void standin_forgive(void);

/* Return how often the driver call @call was made; "*": all calls. */
uint64_t standin_calls(const char *call);
/* Return the number of bytes moved by copy calls, or by kernels. */
uint64_t standin_copied(bool by_kernel);

#endif
