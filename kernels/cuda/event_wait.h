/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event_wait.h - what the caller's stream had been given when a transfer was
 * begun.
 */
#ifndef KV_CUDA_MARK_H
#define KV_CUDA_MARK_H

#include "kernels/cuda/gpu.h"

struct kv_mark;

/*
 * What @stream has been given by now, or what @event stands for by now: either
 * may be destroyed or used again afterwards.  -EINVAL: not handles of this
 * GPU's context, or none; -ENOMEM, -EIO.
 */
int kv_mark_new(struct kv_gpu *gpu, CUstream stream, CUevent event,
		struct kv_mark **ret_mark);
/* Also if it failed: the copies that come after it will, too. */
bool kv_mark_is_done(struct kv_mark *mark);
void kv_mark_free(struct kv_mark *mark);

/* For streams to wait for. */
CUevent kv_mark_event(const struct kv_mark *mark);

/* With every mark freed; the GPU is entered. */
void kv_marks_free(struct kv_gpu *gpu);

#endif
