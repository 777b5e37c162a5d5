/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native.c - what the Python package does in C: release of handles, arrays of
 * keys, calls of libkvfs that follow each other, and DLPack.
 *
 * OWNS      struct held: a reference-counted handle of libkvfs that holds its
 *           parent.  So a session is closed after its leases, whatever order
 *           Python gives them up in, and a lease after the last tensor on it.
 *
 * LOCKING   none: counts are atomic.  The last put may come from any thread,
 *           with or without the interpreter's lock, for tensors that other
 *           libraries hold.
 */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include <kvfs.h>

enum held_kind { HELD_SESSION, HELD_SPACE, HELD_LEASE, HELD_POOL, HELD_XFER };

struct held {
	void *what; /* first member, for held_end */
	enum held_kind kind;
	struct held *parent; /* parent, of which this has a reference */
	atomic_uint refs;
};

/* build_native.py gives cffi the declarations from here to the #undef. */
#define PYTHON_CALLS
struct held;
/* Make a holder, with one reference, for a handle that libkvfs is still to
 * make.  The holder keeps @parent.  NULL: no memory. */
static struct held *held_new(int kind, struct held *parent);
/* Return the address where libkvfs stores the handle.  From then on @held owns
 * the handle, also if the interpreter raises an exception. */
static void *held_out(struct held *held);
static void *held_what(struct held *held);
/* Drop the reference to the holder whose held_out is @out. */
static void held_end(void *out);

/* Make @n keys from hashes of @len bytes each: as they are with 16 or 32 bytes,
 * otherwise by SHA-256. */
static int keys_set(kvfs_key *keys, const char *hashes, size_t n, size_t len);
/* Make @n keys by SHA-256 of @salt followed by each hash. */
static int keys_salted(kvfs_key *keys, const char *hashes, size_t n, size_t len,
		       const char *salt, size_t salt_len);

/*
 * Match @keys in the space of each query, acquire the matching blocks within
 * @deadline nanoseconds (0: no limit), and wait @wait nanoseconds for the
 * lease.  A query with a window acquires only its last @windows[i] blocks.
 * @missing: if no query has a window, acquire all @n keys without a match,
 * which saves a round trip; other nodes may have blocks that do not match here.
 * Return the number of blocks that match; 0: no lease was made.  *@ret_held:
 * the result of kvfs_lease_wait.
 */
static long chain_hold(kvfs_query *queries, const uint32_t *windows,
		       size_t n_queries, const kvfs_key *keys, size_t n,
		       uint64_t deadline, uint64_t wait, uint64_t user,
		       int missing, kvfs_lease **ret_lease, long *ret_held);
/* Call kvfs_acquire with @flags and then kvfs_load of @n blocks, each with
 * @deadline (0: no limit).  The lease ends with the load. */
static int chain_load(kvfs_pool *pool, kvfs_space *space, const kvfs_key *keys,
		      size_t n, const int64_t *pages, uint64_t deadline,
		      uint32_t flags, uintptr_t stream, uintptr_t event,
		      uint64_t user, kvfs_xfer **ret_xfer);
/* Call kvfs_save for a part of a chain: block @position and the blocks after
 * it.  @parent: the key before the part, or NULL. */
static int chain_save(kvfs_pool *pool, kvfs_space *space, const kvfs_key *keys,
		      size_t n, const kvfs_key *parent, uint32_t position,
		      const int64_t *pages, uint64_t deadline, uint32_t flags,
		      uintptr_t stream, uint64_t user, kvfs_xfer **ret_xfer);
/* Free a text that libkvfs has allocated. */
static void text_free(char *text);

/* Return a read-only DLManagedTensorVersioned of memory that @held keeps. */
static void *dlpack_new(struct held *held, const void *data, int code, int bits,
			int ndim, const int64_t *shape);
/* Return the destructor for PyCapsule_New of the tensor's capsule. */
static void *dlpack_destructor(void);

/* Write the paths of all copies of libkvfs in this process, one a line.  Return
 * their number. */
static int library_copies(char *ret_paths, size_t size);
#undef PYTHON_CALLS

static void end(enum held_kind kind, void *what)
{
	switch (kind) {
	case HELD_SESSION:
		kvfs_close(what);
		break;
	case HELD_SPACE:
		kvfs_space_close(what);
		break;
	case HELD_LEASE:
		kvfs_release(what);
		break;
	case HELD_POOL:
		kvfs_pool_close(what);
		break;
	case HELD_XFER:
		kvfs_xfer_free(what);
		break;
	}
}

static struct held *held_new(int kind, struct held *parent)
{
	struct held *held = malloc(sizeof(*held));

	if (!held)
		return NULL;
	held->what = NULL;
	held->kind = (enum held_kind)kind;
	held->parent = parent;
	atomic_init(&held->refs, 1);
	if (parent)
		atomic_fetch_add(&parent->refs, 1);
	return held;
}

static void *held_out(struct held *held)
{
	return &held->what;
}

static void *held_what(struct held *held)
{
	return held->what;
}

static void held_put(struct held *held)
{
	while (held && atomic_fetch_sub(&held->refs, 1) == 1) {
		struct held *parent = held->parent;

		if (held->what)
			end(held->kind, held->what);
		free(held);
		held = parent;
	}
}

static void held_end(void *out)
{
	held_put(out);
}

static int keys_set(kvfs_key *keys, const char *hashes, size_t n, size_t len)
{
	for (size_t i = 0; i < n; i++) {
		const char *hash = hashes + i * len;
		int r = len == 16 || len == 32
				? kvfs_key_set(hash, len, &keys[i])
				: kvfs_key_fold(hash, len, &keys[i]);

		if (r < 0)
			return r;
	}
	return 0;
}

static int keys_salted(kvfs_key *keys, const char *hashes, size_t n, size_t len,
		       const char *salt, size_t salt_len)
{
	char *text = malloc(salt_len + len);
	int r = text ? 0 : -ENOMEM;

	if (text)
		memcpy(text, salt, salt_len);
	for (size_t i = 0; i < n && r == 0; i++) {
		memcpy(text + salt_len, hashes + i * len, len);
		r = kvfs_key_fold(text, salt_len + len, &keys[i]);
	}
	free(text);
	return r;
}

/* ---- several calls of libkvfs in one ---- */

static long chain_hold(kvfs_query *queries, const uint32_t *windows,
		       size_t n_queries, const kvfs_key *keys, size_t n,
		       uint64_t deadline, uint64_t wait, uint64_t user,
		       int missing, kvfs_lease **ret_lease, long *ret_held)
{
	kvfs_opts opts = {
		.size = sizeof(opts), .deadline = deadline, .user = user};
	long hit;
	int r;

	for (size_t i = 0; i < n_queries; i++) {
		queries[i].keys = keys;
		queries[i].n = n;
		missing = missing && windows[i] == 0;
	}
	hit = missing ? (long)n : kvfs_match(queries, n_queries);
	if (hit <= 0)
		return hit;
	for (size_t i = 0; i < n_queries; i++) {
		queries[i].n = (size_t)hit;
		if (windows[i] > 0 && windows[i] < (size_t)hit)
			queries[i].n = windows[i];
		queries[i].keys = keys + (size_t)hit - queries[i].n;
	}
	r = kvfs_acquire(queries, n_queries, &opts, ret_lease);
	if (r < 0)
		return r;
	*ret_held = kvfs_lease_wait(*ret_lease, wait);
	if (*ret_held == 0) {
		kvfs_release(*ret_lease);
		*ret_lease = NULL;
		return 0;
	}
	return hit;
}

static int chain_load(kvfs_pool *pool, kvfs_space *space, const kvfs_key *keys,
		      size_t n, const int64_t *pages, uint64_t deadline,
		      uint32_t flags, uintptr_t stream, uintptr_t event,
		      uint64_t user, kvfs_xfer **ret_xfer)
{
	kvfs_query query = {.space = space, .keys = keys, .n = n};
	kvfs_opts opts = {
		.size = sizeof(opts), .deadline = deadline, .flags = flags};
	kvfs_lease *lease;
	int r = kvfs_acquire(&query, 1, &opts, &lease);

	if (r < 0)
		return r;
	opts.flags = 0;
	opts.user = user;
	opts.stream = (void *)stream;
	opts.event = (void *)event;
	r = kvfs_load(pool, lease, n, pages, &opts, ret_xfer);
	kvfs_release(lease);
	return r;
}

static int chain_save(kvfs_pool *pool, kvfs_space *space, const kvfs_key *keys,
		      size_t n, const kvfs_key *parent, uint32_t position,
		      const int64_t *pages, uint64_t deadline, uint32_t flags,
		      uintptr_t stream, uint64_t user, kvfs_xfer **ret_xfer)
{
	kvfs_opts opts = {.size = sizeof(opts),
			  .deadline = deadline,
			  .flags = flags,
			  .stream = (void *)stream,
			  .user = user};
	kvfs_meta *metas = calloc(n + 1, sizeof(*metas));
	int r;

	if (!metas)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		metas[i].position = position + (uint32_t)i;
		metas[i].parent.len = KVFS_CHAIN;
	}
	if (parent)
		metas[0].parent = *parent;
	r = kvfs_save(pool, space, keys, metas, n, pages, &opts, ret_xfer);
	free(metas);
	return r;
}

static void text_free(char *text)
{
	free(text);
}

/* ---- DLPack 1.0 ---- */

struct dl_tensor {
	void *data;
	int32_t device_type, device_id;
	int32_t ndim;
	uint8_t code, bits;
	uint16_t lanes;
	int64_t *shape, *strides;
	uint64_t byte_offset;
};

struct dl_managed {
	uint32_t major, minor;
	void *context;
	void (*deleter)(struct dl_managed *self);
	uint64_t flags;
	struct dl_tensor tensor;
	int64_t dims[]; /* shape, then strides */
};

#define DL_CPU 1
#define DL_READ_ONLY 1u

static void dl_delete(struct dl_managed *managed)
{
	held_put(managed->context);
	free(managed);
}

static void *dlpack_new(struct held *held, const void *data, int code, int bits,
			int ndim, const int64_t *shape)
{
	struct dl_managed *managed =
		calloc(1, sizeof(*managed) + 2 * (size_t)ndim * sizeof(*shape));
	int64_t stride = 1;

	if (!managed)
		return NULL;
	atomic_fetch_add(&held->refs, 1);
	managed->major = 1;
	managed->context = held;
	managed->deleter = dl_delete;
	managed->flags = DL_READ_ONLY;
	managed->tensor = (struct dl_tensor){
		.data = (void *)data,
		.device_type = DL_CPU,
		.ndim = ndim,
		.code = (uint8_t)code,
		.bits = (uint8_t)bits,
		.lanes = 1,
		.shape = managed->dims,
		.strides = managed->dims + ndim,
	};
	for (int i = ndim - 1; i >= 0; i--) {
		managed->dims[i] = shape[i];
		managed->dims[ndim + i] = stride;
		stride *= shape[i];
	}
	return managed;
}

/* Free a tensor that no consumer took out of its capsule: taking it renames the
 * capsule. */
static void capsule_end(PyObject *capsule)
{
	struct dl_managed *managed;

	if (!PyCapsule_IsValid(capsule, "dltensor_versioned"))
		return;
	managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
	managed->deleter(managed);
}

static void *dlpack_destructor(void)
{
	return (void *)capsule_end;
}

/* ---- one libkvfs in a process ---- */

struct copies {
	char *paths;
	size_t size, used;
	int n;
};

static int count_copy(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct copies *copies = arg;
	const char *slash = strrchr(info->dlpi_name, '/');
	const char *name = slash ? slash + 1 : info->dlpi_name;
	size_t len = strlen(info->dlpi_name);

	(void)size;
	if (strncmp(name, "libkvfs.so", 10) != 0)
		return 0;
	copies->n++;
	if (copies->used + len + 2 > copies->size)
		return 0;
	memcpy(copies->paths + copies->used, info->dlpi_name, len);
	copies->paths[copies->used + len] = '\n';
	copies->used += len + 1;
	copies->paths[copies->used] = '\0';
	return 0;
}

static int library_copies(char *ret_paths, size_t size)
{
	struct copies copies = {.paths = ret_paths, .size = size};

	dl_iterate_phdr(count_copy, &copies);
	return copies.n;
}
