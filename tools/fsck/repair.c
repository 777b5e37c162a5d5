/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repair.c - repair the faults that the check noted, or rebuild the index.
 *
 * OWNS      the index, while it is open for writing.
 *
 * INVARIANTS
 *   (1) A prologue is zeroed only after its record was deleted.
 *
 * LOCKING   one thread; STORE is locked for writing.
 */
#include "tools/fsck/fsck.h"
#include "index/sidecar.h"
#include "index/segfile.h"

#include <fcntl.h>

/* most changes in a transaction: so few fit into a full index */
#define A_BATCH 256

struct writer {
	struct kv_index *index;
	struct kv_txn *batch;
	unsigned in_batch;
	int r; /* the first error; no step runs after it */
};

static struct kv_txn *batch_of(struct writer *w)
{
	if (w->r == 0 && w->batch && w->in_batch >= A_BATCH) {
		w->r = kv_txn_commit(kv_steal(w->batch));
		w->in_batch = 0;
	}
	if (w->r == 0 && !w->batch)
		w->r = kv_txn_begin(w->index, &w->batch);
	w->in_batch++;
	return w->r == 0 ? w->batch : NULL;
}

static void delete_slot(struct writer *w, uint64_t slot_id)
{
	struct kv_txn *batch = batch_of(w);

	if (batch)
		w->r = kv_txn_delete(batch, KV_PART_SLOTS, slot_id);
	if (batch && w->r == 0)
		w->r = kv_txn_delete(batch, KV_PART_TOKENS, slot_id);
}

static int mend_index(struct fsck *f)
{
	struct kv_store_info info;
	struct writer w = {0};

	kv_index_lock_file_check(f->store);
	w.r = kv_index_open(f->index_path, kv_index_map_bytes(f->info.cap),
			    false, NULL, &info, &w.index);
	if (w.r < 0)
		return w.r;
	for (size_t i = 0; i < f->bad_slots.n; i++)
		delete_slot(&w, f->bad_slots.ids[i]);
	for (size_t i = 0; i < f->n_entries; i++)
		if (f->entries[i].drop)
			delete_slot(&w, f->entries[i].slot_id);
	for (size_t i = 0; i < f->bad_tokens.n; i++) {
		struct kv_txn *batch = batch_of(&w);

		if (batch)
			w.r = kv_txn_delete(batch, KV_PART_TOKENS,
					    f->bad_tokens.ids[i]);
	}
	for (size_t i = 0; i < f->n_spaces; i++) {
		const struct space *space = &f->spaces[i];
		struct kv_txn *batch = space->put ? batch_of(&w) : NULL;

		if (batch)
			w.r = space->name
				      ? kv_txn_put_space(batch, &space->record,
							 space->name,
							 space->layout)
				      : kv_txn_delete(batch, KV_PART_SPACES,
						      space->id);
	}
	for (size_t i = 0; i < f->n_segments; i++) {
		const struct segment *segment = &f->segments[i];
		const struct kv_segfile_record record = {
			.id = segment->id,
			.slots = segment->slots,
			.slot_bytes = segment->slot_bytes};
		const bool lost = !segment->present || !segment->slot_bytes;
		struct kv_txn *batch =
			lost || segment->put ? batch_of(&w) : NULL;

		if (batch)
			w.r = lost ? kv_txn_delete(batch, KV_PART_SEGMENTS,
						   segment->id)
				   : kv_txn_put_segfile(batch, &record);
	}
	if (w.r == 0 && w.batch)
		w.r = kv_txn_commit(kv_steal(w.batch));
	kv_txn_abort(w.batch);
	kv_index_close(w.index);
	return w.r;
}

/* Zero prologues, then write trailers: a trailer makes the daemon read the
 * prologues of free slots. */
static int mend_segment_files(struct fsck *f)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < f->stale.n;) {
		const uint32_t id = (uint32_t)(f->stale.ids[i] >> 32);
		const struct segment *segment = fsck_segment(f, id);
		_cleanup_(kv_closep) int fd = fsck_open_segment(f, id, O_RDWR);

		if (fd < 0)
			return fd;
		for (; r == 0 && i < f->stale.n &&
		       (uint32_t)(f->stale.ids[i] >> 32) == id;
		     i++)
			r = kv_segfile_zero(fd, segment->slot_bytes,
					    (uint32_t)f->stale.ids[i]);
		if (r == 0 && fdatasync(fd) < 0)
			r = -errno;
	}
	for (size_t i = 0; r == 0 && i < f->n_segments; i++) {
		const struct segment *segment = &f->segments[i];
		_cleanup_(kv_closep) int fd = -1;

		if (segment->trailer || !segment->present ||
		    !segment->slot_bytes)
			continue;
		fd = fsck_open_segment(f, segment->id, O_RDWR);
		r = fd < 0 ? fd
			   : kv_trailer_write(fd, segment->id, f->info.store,
					      f->info.segment_bytes,
					      segment->slot_bytes);
	}
	return r;
}

static int mend_sidecar(struct fsck *f)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < f->n_spaces; i++)
		if (f->spaces[i].write)
			r = kv_space_file_write(
				f->spaces_dir, &f->spaces[i].record,
				f->spaces[i].name, f->spaces[i].layout);
	for (size_t i = 0; r == 0 && i < f->stray_files.n; i++)
		r = kv_space_file_remove(f->spaces_dir,
					 (uint32_t)f->stray_files.ids[i]);
	if (r == 0 && f->write_store_file)
		r = kv_store_file_write(f->store, &f->info);
	if (r < 0 || !f->count[FAULT_TENANTS])
		return r;
	r = kv_tenants_write(f->store, f->tenants, f->n_tenants);
	if (r == 0)
		f->fixed[FAULT_TENANTS] = f->count[FAULT_TENANTS];
	/* A directory named `tenants` is unknown, and is left alone. */
	return r == -EISDIR ? 0 : r;
}

int fsck_repair(struct fsck *f)
{
	char name[KV_SEGFILE_NAME];
	int r;

	if (!f->readable)
		return 0;
	r = mend_index(f);
	if (r == 0)
		r = mend_segment_files(f);
	if (r == 0)
		r = mend_sidecar(f);
	for (size_t i = 0; r == 0 && i < f->unknown.n; i++) {
		kv_segfile_name((uint32_t)f->unknown.ids[i], name);
		r = unlinkat(f->segments_dir, name, 0) < 0 ? -errno : 0;
	}
	if (r == 0 && f->unknown.n && fsync(f->segments_dir) < 0)
		r = -errno;
	if (r < 0)
		return fsck_error("%s: cannot repair it: %s", f->path,
				  strerror(-r));
	for (unsigned i = 0; i < N_FAULTS; i++)
		if (i != FAULT_SLOT_UNREADABLE && i != FAULT_STRANGER &&
		    i != FAULT_TENANTS)
			f->fixed[i] = f->count[i];
	return 0;
}

int fsck_rebuild(struct fsck *f)
{
	struct kv_rebuild rebuild = {.store_fd = f->store, .path = f->path};
	int r = kv_rebuild(&rebuild);

	if (r == -ENODATA)
		return fsck_error("%s: nothing to rebuild it from: no `store`, "
				  "and no segment file with a trailer",
				  f->path);
	if (r == -ENOTSUP)
		return fsck_error("%s: " KV_FORMAT_REFUSED, f->path);
	if (r == -ENOTDIR)
		return fsck_error("%s: " KV_SPACES_MISSING, f->path);
	if (r < 0)
		return fsck_error("%s: cannot rebuild it: %s", f->path,
				  strerror(-r));
	f->rebuilt = true;
	f->rebuilt_blocks = rebuild.blocks;
	f->rebuilt_out = rebuild.strays + rebuild.duplicates +
			 rebuild.unreadable + rebuild.damaged;
	return 0;
}
