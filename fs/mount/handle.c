/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle.c - what a file or directory that is open through the mount holds.
 *
 * OWNS      every open handle and what it holds.
 *
 * INVARIANTS
 *   (1) A handle is on the list from open to release; a mount that ends with
 *       files open gives back what they hold.
 *
 * LOCKING   handles->lock guards the list; the rest of a handle is fixed after
 *           new.  It is a leaf.
 */
#include "fs/mount/handle.h"

int kv_handle_new(struct kv_mount *mount, const struct kv_handle *from,
		  struct fuse_file_info *fi)
{
	struct kv_handle *handle = malloc(sizeof(*handle));

	if (handle == NULL)
		return -ENOMEM;
	*handle = *from;
	pthread_mutex_lock(&mount->handles->lock);
	LIST_INSERT_HEAD(&mount->handles->list, handle, all);
	pthread_mutex_unlock(&mount->handles->lock);
	fi->fh = (uintptr_t)handle;
	return 0;
}

void kv_handle_drop(struct kv_mount *mount, struct kv_handle *handle)
{
	switch (handle->kind) {
	case KV_HANDLE_BLOCK:
		kv_block_put(mount->cache, handle->block);
		mount->opens--;
		break;
	case KV_HANDLE_UPLOAD:
		kv_upload_closed(handle->upload);
		break;
	case KV_HANDLE_TEXT:
		free(handle->text);
		break;
	case KV_HANDLE_DIR:
		free(handle->nodes);
		break;
	}
}

void kv_handle_free(struct kv_mount *mount, struct kv_handle *handle)
{
	pthread_mutex_lock(&mount->handles->lock);
	LIST_REMOVE(handle, all);
	pthread_mutex_unlock(&mount->handles->lock);
	kv_handle_drop(mount, handle);
	free(handle);
}

void kv_handles_free_all(struct kv_mount *mount)
{
	struct kv_handle *handle;

	while ((handle = LIST_FIRST(&mount->handles->list)) != NULL)
		kv_handle_free(mount, handle);
}
