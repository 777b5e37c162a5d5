/* SPDX-License-Identifier: Apache-2.0 */
/*
 * capture.c - captures of streams, and the graphs made from them.
 *
 * OWNS      active captures, graphs, and their operations.
 *
 * STATES    of a capture:
 *
 *             ACTIVE -> INVALID    capture_spoil_locked, capture_forbids
 *             ACTIVE -> a graph    cuStreamEndCapture
 *            INVALID -> (gone)     cuStreamEndCapture
 *
 * INVARIANTS
 *   (1) Operations of a captured stream do not run.  Each becomes a node, also
 *       a wait for a value, and runs with each launch of the graph.
 *   (2) A graph's nodes run one after the other, in the order of the calls.
 *
 * LOCKING   big_lock.
 */
#include "tests/gpu/standin/standin.h"

struct capture {
	struct capture *next;
	uint64_t id;
	struct CUstream_st *origin;
	pthread_t owner;
	int mode;
	bool invalid, joined; /* guarded by big_lock */
	struct op *first, **last;
	size_t n;
};

struct CUgraph_st {
	struct op *first;
	size_t n;
	/* counts the graph and its executables; guarded by big_lock */
	unsigned refs;
};

static struct capture *captures; /* guarded by big_lock */
/* number of captures made so far; guarded by big_lock */
static uint64_t captured;

/* ---- captures ---- */

struct capture *capture_find_locked(uint64_t id)
{
	struct capture *capture = captures;

	while (capture != NULL && capture->id != id)
		capture = capture->next;
	return capture;
}

uint64_t capture_id(const struct capture *capture)
{
	return capture->id;
}

void capture_join_locked(struct capture *capture, struct CUstream_st *stream)
{
	*stream_capture_locked(stream) = capture;
	capture->joined = true;
}

void capture_spoil_locked(struct capture *capture)
{
	capture->invalid = true;
}

static bool is_in_the_way(const struct capture *capture)
{
	if (capture_mode == CU_CAPTURE_RELAXED ||
	    capture->mode == CU_CAPTURE_RELAXED)
		return false;
	return pthread_equal(capture->owner, pthread_self()) ||
	       (capture_mode == CU_CAPTURE_GLOBAL &&
		capture->mode == CU_CAPTURE_GLOBAL);
}

bool capture_forbids(void)
{
	struct capture *capture;
	bool forbids = false;

	pthread_mutex_lock(&big_lock);
	for (capture = captures; capture != NULL; capture = capture->next)
		if (is_in_the_way(capture)) {
			capture->invalid = true;
			forbids = true;
		}
	pthread_mutex_unlock(&big_lock);
	return forbids;
}

CUresult capture_take_locked(struct capture *capture, struct op *op)
{
	if (capture->invalid)
		return CU_CAPTURE_INVALIDATED;
	*capture->last = op;
	capture->last = &op->next;
	capture->n++;
	return CU_OK;
}

static void free_ops(struct op *op)
{
	struct op *next;

	for (; op != NULL; op = next) {
		next = op->next;
		op_free(op);
	}
}

CUresult cuStreamIsCapturing(CUstream handle, int *status)
{
	CUresult r = enter("cuStreamIsCapturing", CONTEXT);
	struct CUstream_st *stream;
	struct capture *capture;

	if (r != CU_OK)
		return r;
	pthread_mutex_lock(&big_lock);
	stream = stream_of_locked(handle);
	if (stream == NULL) {
		r = CU_INVALID_HANDLE;
	} else if (legacy_capture_locked(stream) != NULL) {
		r = CU_CAPTURE_IMPLICIT;
	} else {
		capture = *stream_capture_locked(stream);
		*status = capture == NULL    ? CU_CAPTURING_NONE
			  : capture->invalid ? CU_CAPTURING_INVALID
					     : CU_CAPTURING;
	}
	pthread_mutex_unlock(&big_lock);
	return r;
}

static CUresult begin_locked(struct CUstream_st *stream, int mode)
{
	struct capture *capture;

	if (*stream_capture_locked(stream) != NULL)
		return CU_INVALID_VALUE;
	capture = calloc(1, sizeof(*capture));
	if (capture == NULL)
		return CU_OUT_OF_MEMORY;
	capture->id = ++captured;
	capture->origin = stream;
	capture->owner = pthread_self();
	capture->mode = mode;
	capture->last = &capture->first;
	capture->next = captures;
	captures = capture;
	*stream_capture_locked(stream) = capture;
	return CU_OK;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, int mode)
{
	CUresult r = enter("cuStreamBeginCapture_v2", CONTEXT);
	struct CUstream_st *stream;

	if (r != CU_OK)
		return r;
	if (mode < 0 || mode > 2)
		return CU_INVALID_VALUE;
	if (handle == NULL || handle == CU_LEGACY)
		return CU_CAPTURE_UNSUPPORTED;
	pthread_mutex_lock(&big_lock);
	stream = stream_of_locked(handle);
	r = stream == NULL ? CU_INVALID_HANDLE : begin_locked(stream, mode);
	pthread_mutex_unlock(&big_lock);
	return r;
}

static CUresult end_locked(struct CUstream_st *stream, CUgraph *graph)
{
	struct capture *capture = *stream_capture_locked(stream), **at;
	CUresult r = CU_OK;

	if (capture == NULL || capture->origin != stream)
		return CU_CAPTURE_UNMATCHED;
	if (capture->mode != CU_CAPTURE_RELAXED &&
	    !pthread_equal(capture->owner, pthread_self()))
		return CU_CAPTURE_WRONG_THREAD;
	for (at = &captures; *at != capture; at = &(*at)->next)
		;
	*at = capture->next;
	streams_leave_locked(capture);
	if (capture->invalid) {
		r = CU_CAPTURE_INVALIDATED;
		free_ops(capture->first);
		*graph = NULL;
	} else {
		*graph = calloc(1, sizeof(**graph));
		if (*graph == NULL)
			abort();
		**graph = (struct CUgraph_st){capture->first, capture->n, 1};
	}
	free(capture);
	return r;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *graph)
{
	CUresult r = enter("cuStreamEndCapture", CONTEXT);
	struct CUstream_st *stream;

	if (r != CU_OK)
		return r;
	pthread_mutex_lock(&big_lock);
	stream = stream_of_locked(handle);
	r = stream == NULL ? CU_INVALID_HANDLE : end_locked(stream, graph);
	pthread_mutex_unlock(&big_lock);
	return r;
}

/* ---- graphs ---- */

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *n)
{
	CUresult r = enter("cuGraphGetNodes", INIT);

	if (r != CU_OK)
		return r;
	if (nodes != NULL)
		return CU_NOT_SUPPORTED;
	*n = graph->n;
	return CU_OK;
}

/* Graphs do not change: the executable may be the graph itself. */
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
				     unsigned long long flags)
{
	CUresult r = enter("cuGraphInstantiateWithFlags", CONTEXT);

	if (r != CU_OK)
		return r;
	if (flags != 0)
		return CU_INVALID_VALUE;
	pthread_mutex_lock(&big_lock);
	graph->refs++;
	pthread_mutex_unlock(&big_lock);
	*exec = (CUgraphExec)graph;
	return CU_OK;
}

static struct op *copy_of(const struct op *node)
{
	struct op *op = op_new(node->run);

	*op = *node;
	op->next = NULL;
	if (op->parameters != NULL) {
		op->parameters = malloc(op->parameters_bytes);
		if (op->parameters == NULL)
			abort();
		memcpy(op->parameters, node->parameters, op->parameters_bytes);
	}
	return op;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
	CUresult r = enter("cuGraphLaunch", CONTEXT);
	const struct op *node;

	for (node = ((CUgraph)exec)->first; node != NULL && r == CU_OK;
	     node = node->next)
		r = give(stream, copy_of(node), NULL);
	return r;
}

static CUresult put(const char *call, CUgraph graph)
{
	CUresult r = enter(call, INIT);
	unsigned refs;

	if (r != CU_OK)
		return r;
	pthread_mutex_lock(&big_lock);
	refs = --graph->refs;
	pthread_mutex_unlock(&big_lock);
	if (refs == 0) {
		free_ops(graph->first);
		free(graph);
	}
	return CU_OK;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
	return put("cuGraphExecDestroy", (CUgraph)exec);
}

CUresult cuGraphDestroy(CUgraph graph)
{
	return put("cuGraphDestroy", graph);
}
