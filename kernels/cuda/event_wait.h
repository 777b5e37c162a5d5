/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event_wait.h - what a stream had been given at some time: the caller's, when a
 * transfer was begun, or one of ours, when it had all of a batch.
 */
#ifndef KV_KERNELS_CUDA_EVENT_WAIT_H
#define KV_KERNELS_CUDA_EVENT_WAIT_H

#include "kernels/cuda/gpu.h"

struct kv_event_wait;

/*
 * Note all that @stream has been given, or that @event stands for, by now:
 * either may be destroyed or used again afterwards.  -EINVAL: not handles of
 * this GPU's context, or none; -EBUSY: the stream is being captured, which goes
 * on undisturbed, or the event was recorded in one; -ENOMEM, -EIO.
 */
int kv_event_wait_new(struct kv_gpu *gpu, CUstream stream, CUevent event,
		      struct kv_event_wait **ret_event_wait);
/* Also if it failed: the copies that come after it will, too. */
bool kv_event_wait_is_done(struct kv_event_wait *event_wait);
void kv_event_wait_free(struct kv_event_wait *event_wait);

/* Work given to @stream from now on comes after it, on the device.  -EINVAL,
 * -EBUSY, -EIO. */
int kv_event_wait_order(struct kv_event_wait *event_wait, CUstream stream);
/* For our own streams to wait for. */
CUevent kv_event_wait_event(const struct kv_event_wait *event_wait);

/* Some, to begin with; more are made when these are in use.  The GPU is entered.
 * -ENOMEM, -EIO. */
int kv_event_waits_new(struct kv_gpu *gpu);
/* With every event wait freed; the GPU is entered. */
void kv_event_waits_free(struct kv_gpu *gpu);

#endif
