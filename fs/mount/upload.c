/* SPDX-License-Identifier: Apache-2.0 */
/*
 * upload.c - uploads: files that are being written through the mount, and their names.
 *
 * OWNS      every struct kv_upload with its draft; the sweeper.
 *
 * STATES    of an upload: LINKED (its name resolves) -> unlinked, by kv_upload_unlink,
 *           kv_upload_restart, kv_upload_closed and sweep.  The last put frees it.
 *
 * INVARIANTS
 *   (1) A linked upload is in the bucket of its serial and holds itself.
 *   (2) No two linked uploads have the same space, name and uid.
 *   (3) An upload that is not open is linked, or about to be freed.
 *
 * LOCKING   uploads->lock guards the buckets and the fields of uploads that are marked
 *           so.  No lock of a draft is taken under it.
 */
#include <malloc.h>
#include <signal.h>

#include "fs/mount/mount.h"
#include "common/thread.h"

#define BUCKETS 256u
#define SECOND_NS UINT64_C(1000000000)
#define TRIM_SWEEPS 10 /* number of sweeps until memory is trimmed */
/* idle time after which a staging file is removed */
#define IDLE_NS (60 * SECOND_NS)
#define ORPHAN_NS (10 * SECOND_NS) /* idle time if the writing process died */

struct kv_uploads {
	struct kv_cache *cache; /* fixed after new */
	struct kv_periodic sweeper;
	unsigned sweeps; /* sweeper only */

	pthread_mutex_t lock;
	LIST_HEAD(, kv_upload) buckets[BUCKETS]; /* lock */
	uint64_t serials;			 /* lock */
};

/* Return the bucket of a name, which is also the low bits of the serial, so that
 * a name and its serial share a bucket. */
static uint8_t bucket_of(const char *text)
{
	uint32_t hash = 5381;

	while (*text != '\0')
		hash = hash * 33 + (uint8_t)*text++;
	return (uint8_t)(hash ^ hash >> 8);
}

/* ---- names ---- */

int kv_name_parse(const char *text, int byte, struct kv_name *ret_name)
{
	char key[KV_NAME_MAX + 1] = {0};
	struct kv_name name = {0};
	const char *dot;
	size_t len;
	int r = 0;

	if (strlen(text) > 255)
		return -ENAMETOOLONG;
	if (byte < 0) {
		name.kind = KV_NAME_LAYOUT;
		if (strncmp(text, ".layout.", 8) == 0 && text[8] != '\0')
			name.kind = KV_NAME_LAYOUT_TEMP;
		else if (strcmp(text, ".layout") != 0)
			return -EINVAL;
	} else if (text[0] == '.') {
		/* `.<key>.<suffix>` */
		dot = strchr(text + 1, '.');
		len = dot ? (size_t)(dot - text - 1) : 0;
		if (len == 0 || len > KV_NAME_MAX || dot[1] == '\0')
			return -EINVAL;
		memcpy(key, text + 1, len);
		name.kind = KV_NAME_TEMP;
		r = kv_key_parse(key, &name.key);
	} else {
		name.kind = KV_NAME_KEY;
		r = kv_key_parse(text, &name.key);
	}
	if (r < 0)
		return r;
	if (byte >= 0 && name.key.b[0] != byte)
		return -EINVAL;
	*ret_name = name;
	return 0;
}

/* ---- making and freeing uploads ---- */

static void free_upload(struct kv_upload *upload)
{
	kv_draft_free(upload->draft);
	if (upload->account)
		kv_account_credit(upload->account, KV_FINITE_UPLOADS, 1);
	kv_account_put(upload->account);
	kv_space_put(upload->space);
	free(upload->text);
	free(upload);
}

static void unlink_locked(struct kv_upload *upload)
{
	kv_assert_locked(&upload->uploads->lock);
	LIST_REMOVE(upload, bucket);
	upload->linked = false;
	upload->refs--; /* not the last reference: the caller has one */
}

static void link_locked(struct kv_upload *upload)
{
	struct kv_uploads *uploads = upload->uploads;

	kv_assert_locked(&uploads->lock);
	LIST_INSERT_HEAD(&uploads->buckets[(uint8_t)upload->serial], upload,
			 bucket);
	upload->linked = true;
	upload->refs++;
}

void kv_upload_put(struct kv_upload *upload)
{
	struct kv_uploads *uploads = upload->uploads;
	bool last;

	pthread_mutex_lock(&uploads->lock);
	last = --upload->refs == 0;
	pthread_mutex_unlock(&uploads->lock);
	if (last)
		free_upload(upload);
}

static struct kv_upload *find_locked(struct kv_uploads *uploads,
				     struct kv_space *space, const char *text,
				     uid_t uid)
{
	struct kv_upload *u;

	kv_assert_locked(&uploads->lock);
	LIST_FOREACH(u, &uploads->buckets[bucket_of(text)], bucket)
		if (u->space == space && u->maker == uid &&
		    strcmp(u->text, text) == 0)
			break;
	return u;
}

/* Hold @u for the caller, and unlock.  Returns 0, or -ENOENT if @u is NULL. */
static int found_unlock(struct kv_uploads *uploads, struct kv_upload *u,
			struct kv_upload **ret_upload)
{
	if (u) {
		u->refs++;
		u->used_ns = kv_now_ns();
		*ret_upload = u;
	}
	pthread_mutex_unlock(&uploads->lock);
	return u ? 0 : -ENOENT;
}

int kv_upload_find(struct kv_uploads *uploads, struct kv_space *space,
		   const char *text, uid_t uid, struct kv_upload **ret_upload)
{
	struct kv_upload *u;

	pthread_mutex_lock(&uploads->lock);
	u = find_locked(uploads, space, text, uid);
	return found_unlock(uploads, u, ret_upload);
}

int kv_upload_get(struct kv_uploads *uploads, uint64_t serial,
		  struct kv_upload **ret_upload)
{
	struct kv_upload *u;

	pthread_mutex_lock(&uploads->lock);
	LIST_FOREACH(u, &uploads->buckets[(uint8_t)serial], bucket)
		if (u->serial == serial)
			break;
	return found_unlock(uploads, u, ret_upload);
}

static bool is_staging(const struct kv_upload *upload)
{
	return upload->name.kind == KV_NAME_TEMP ||
	       upload->name.kind == KV_NAME_LAYOUT_TEMP;
}

/* FUSE passes thread ids: compare the processes if these differ. */
bool kv_upload_is_for(const struct kv_upload *upload,
		      const struct fuse_ctx *ctx)
{
	if (upload->maker != ctx->uid)
		return false;
	return is_staging(upload) || upload->pid == ctx->pid ||
	       kv_process_of(upload->pid) == kv_process_of(ctx->pid);
}

static void free_uploadp(struct kv_upload **upload)
{
	if (*upload)
		free_upload(*upload);
}

/* Make an upload of the user @uid, held and opened once, not linked. */
static int new_upload(struct kv_uploads *uploads, struct kv_space *space,
		      const char *text, const struct kv_name *name, uid_t uid,
		      struct kv_upload **ret_upload)
{
	_cleanup_(free_uploadp) struct kv_upload *u = calloc(1, sizeof(*u));
	struct kv_account *account;
	int r;

	if (!u)
		return -ENOMEM;
	u->uploads = uploads;
	u->space = kv_space_get(space);
	u->name = *name;
	u->text = strdup(text);
	if (!u->text)
		return -ENOMEM;
	account = kv_account_get(kv_cache_accounts(uploads->cache), uid);
	if (!account)
		return -ENOMEM;
	if (kv_account_charge(account, KV_FINITE_UPLOADS, 1) < 0) {
		kv_account_put(account);
		return -ENFILE;
	}
	u->account = account;
	u->maker = uid;
	r = kv_draft_new(uploads->cache, space,
			 name->key.len > 0 ? &name->key : NULL, u->account,
			 &u->draft);
	if (r < 0)
		return r;
	u->refs = u->opens = 1;
	u->used_ns = kv_now_ns();
	*ret_upload = kv_steal(u);
	return 0;
}

int kv_upload_create(struct kv_uploads *uploads, struct kv_space *space,
		     const char *text, const struct kv_name *name,
		     const struct fuse_ctx *ctx, mode_t mode,
		     struct kv_upload **ret_upload)
{
	_cleanup_(free_uploadp) struct kv_upload *u = NULL;
	int r;

	r = new_upload(uploads, space, text, name, ctx->uid, &u);
	if (r < 0)
		return r;
	u->pid = ctx->pid;
	u->props = (struct kv_upload_props){
		.mode = mode & 07777, .uid = ctx->uid, .gid = ctx->gid};
	pthread_mutex_lock(&uploads->lock);
	if (find_locked(uploads, space, text, ctx->uid)) {
		r = -EEXIST;
	} else {
		u->serial = ++uploads->serials << 8 | bucket_of(text);
		link_locked(u);
	}
	pthread_mutex_unlock(&uploads->lock);
	if (r < 0)
		return r;
	*ret_upload = kv_steal(u);
	return 0;
}

int kv_upload_restart(struct kv_upload *old, const struct fuse_ctx *ctx,
		      struct kv_upload **ret_upload)
{
	struct kv_uploads *uploads = old->uploads;
	_cleanup_(free_uploadp) struct kv_upload *u = NULL;
	bool same;
	int r;

	r = new_upload(uploads, old->space, old->text, &old->name, old->maker,
		       &u);
	if (r < 0)
		return r;
	u->pid = ctx->pid;
	u->serial = old->serial;
	same = kv_upload_is_for(old, ctx);
	pthread_mutex_lock(&uploads->lock);
	u->props = old->props;
	if (!same) { /* time and pin were set for another writer's file */
		u->props.mtime_ns = 0;
		u->props.pin = false;
	}
	if (old->linked) {
		unlink_locked(old);
		link_locked(u);
	} else {
		r = -ESTALE;
	}
	pthread_mutex_unlock(&uploads->lock);
	if (r < 0)
		return r;
	*ret_upload = kv_steal(u);
	return 0;
}

void kv_upload_opened(struct kv_upload *upload)
{
	pthread_mutex_lock(&upload->uploads->lock);
	upload->opens++;
	upload->refs++;
	pthread_mutex_unlock(&upload->uploads->lock);
}

void kv_upload_closed(struct kv_upload *upload, bool keep)
{
	struct kv_uploads *uploads = upload->uploads;

	keep = keep ||
	       (is_staging(upload) && kv_draft_check(upload->draft) >= 0);
	pthread_mutex_lock(&uploads->lock);
	upload->used_ns = kv_now_ns();
	if (--upload->opens == 0 && upload->linked && !keep)
		unlink_locked(upload);
	pthread_mutex_unlock(&uploads->lock);
	kv_upload_put(upload);
}

void kv_upload_unlink(struct kv_upload *upload)
{
	pthread_mutex_lock(&upload->uploads->lock);
	upload->dropped = true;
	if (upload->linked)
		unlink_locked(upload);
	pthread_mutex_unlock(&upload->uploads->lock);
}

/* ---- seal and attributes ---- */

bool kv_upload_sealed(struct kv_upload *upload)
{
	struct kv_block *block = kv_draft_block(upload->draft);

	if (block)
		kv_block_put(upload->uploads->cache, block);
	return block;
}

/* Apply time and pin even if another writer has sealed the block: otherwise rsync would
 * find another time and send the block again, for ever. */
int kv_upload_seal(struct kv_upload *upload, bool *ret_new)
{
	struct kv_uploads *uploads = upload->uploads;
	struct kv_upload_props props;
	struct kv_block *block;
	bool dropped;
	int r;

	*ret_new = false;
	pthread_mutex_lock(&uploads->lock);
	dropped = upload->dropped;
	props = upload->props;
	pthread_mutex_unlock(&uploads->lock);
	if (dropped)
		return 0;
	r = kv_draft_seal(upload->draft, props.mtime_ns, ret_new);
	if (r != 1)
		return r;
	block = kv_draft_block(upload->draft);
	if (!block)
		return 1;
	if (!*ret_new && props.mtime_ns != 0)
		(void)kv_block_set_mtime(uploads->cache, block, props.mtime_ns);
	if (props.pin)
		(void)kv_block_pin(uploads->cache, block, true);
	kv_block_put(uploads->cache, block);
	return 1;
}

int kv_upload_stat(struct kv_uploads *uploads, uint64_t serial,
		   struct stat *ret_attr)
{
	struct kv_upload_props props;
	struct kv_upload *u;
	uint64_t size;

	if (kv_upload_get(uploads, serial, &u) < 0)
		return -ESTALE;
	props = kv_upload_props(u);
	size = kv_draft_size(u->draft);
	kv_upload_put(u);
	*ret_attr = (struct stat){
		.st_ino = kv_node_of(KV_NODE_UPLOAD, serial),
		.st_mode = S_IFREG | props.mode,
		.st_nlink = 1,
		.st_uid = props.uid,
		.st_gid = props.gid,
		.st_size = (off_t)size,
		.st_blksize = 1 << 20,
		.st_blocks = (blkcnt_t)((size + 511) / 512),
	};
	ret_attr->st_mtim = kv_attr_time(props.mtime_ns != 0 ? props.mtime_ns
							     : kv_wall_ns());
	ret_attr->st_atim = ret_attr->st_ctim = ret_attr->st_mtim;
	return 0;
}

struct kv_upload_props kv_upload_props(struct kv_upload *upload)
{
	struct kv_upload_props props;

	pthread_mutex_lock(&upload->uploads->lock);
	props = upload->props;
	pthread_mutex_unlock(&upload->uploads->lock);
	return props;
}

void kv_upload_set_props(struct kv_upload *upload,
			 const struct kv_upload_props *props)
{
	pthread_mutex_lock(&upload->uploads->lock);
	upload->props = *props;
	pthread_mutex_unlock(&upload->uploads->lock);
}

/* ---- sweeping ---- */

static bool is_left_behind(const struct kv_upload *u, uint64_t now_ns)
{
	uint64_t idle = now_ns - u->used_ns;

	if (u->opens > 0 || idle < ORPHAN_NS)
		return false;
	if (idle >= IDLE_NS)
		return true;
	/* Pid 0: a process of another pid namespace, which cannot be seen. */
	return u->pid > 0 && kill(u->pid, 0) < 0 && errno == ESRCH;
}

/* Unlink abandoned uploads.  Return free memory to the system: free(3) returns
 * only what lies above the last allocation in use, so 100 MB stayed after a
 * flood of incomplete files. */
static void sweep(void *arg)
{
	struct kv_uploads *uploads = arg;
	struct kv_upload *u;

	do {
		uint64_t now_ns;

		pthread_mutex_lock(&uploads->lock);
		now_ns = kv_now_ns(); /* not before any used_ns */
		u = NULL;
		for (unsigned i = 0; !u && i < BUCKETS; i++)
			LIST_FOREACH(u, &uploads->buckets[i], bucket)
				if (is_left_behind(u, now_ns))
					break;
		if (u) {
			u->refs++;
			unlink_locked(u);
		}
		pthread_mutex_unlock(&uploads->lock);
		if (u)
			kv_upload_put(u);
	} while (u);
	if (++uploads->sweeps % TRIM_SWEEPS == 0)
		(void)malloc_trim(0);
}

int kv_uploads_new(struct kv_cache *cache, struct kv_uploads **ret_uploads)
{
	struct kv_uploads *uploads = calloc(1, sizeof(*uploads));
	int r;

	if (!uploads)
		return -ENOMEM;
	uploads->cache = cache;
	pthread_mutex_init(&uploads->lock, NULL);
	r = kv_periodic_start(&uploads->sweeper, "kvfs-sweep", SECOND_NS, sweep,
			      uploads);
	if (r < 0) {
		free(uploads);
		return r;
	}
	*ret_uploads = uploads;
	return 0;
}

void kv_uploads_free(struct kv_uploads *uploads)
{
	struct kv_upload *u;

	if (!uploads)
		return;
	kv_periodic_stop(&uploads->sweeper);
	for (unsigned i = 0; i < BUCKETS; i++)
		while ((u = LIST_FIRST(&uploads->buckets[i]))) {
			LIST_REMOVE(u, bucket);
			free_upload(u);
		}
	pthread_mutex_destroy(&uploads->lock);
	free(uploads);
}
