/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.c - one block out of a bundle, checked, and into a space.
 *
 * It is written under a staging name and renamed onto its key, which seals it:
 * only when its bytes have the digest that came with them.
 *
 * OWNS      the staging file, until it is renamed or removed.
 *
 * LOCKING   one thread.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <xxhash.h>

#include "common/bytes.h"
#include "tools/bundle/bundle.h"

static void print_digest(XXH128_hash_t hash, char ret[DIGEST_DIGITS + 1])
{
	XXH128_canonical_t canonical;

	XXH128_canonicalFromHash(&canonical, hash);
	kv_hex(canonical.digest, sizeof(canonical.digest), ret);
}

void bundle_digest(const void *bytes, size_t n, char ret[DIGEST_DIGITS + 1])
{
	print_digest(XXH3_128bits(bytes, n), ret);
}

static int not_taken(const struct bundle_block *block, const char *why)
{
	bundle_error("%s: not taken: %s", block->path, why);
	return 1;
}

/* The mount said @error: that may be of this block alone. */
static int refuse(const struct bundle_block *block, int error)
{
	switch (error) {
	case EEXIST:
		return not_taken(block, "here with other bytes, which stay");
	case EINVAL:
		return not_taken(block, "not a whole safetensors file");
	case EFBIG:
		return not_taken(block, "larger than a segment of the mount, "
					"or than its header says");
	case EBADMSG:
		return not_taken(block, "not of the space's layout");
	default:
		return bundle_error("%s: %s", block->path, strerror(error));
	}
}

/*
 * Hash @block's bytes, and write them to @fd, unless that is -1.  Returns 0; 1:
 * they are not taken, said; or -1, said.
 */
static int copy(int fd, const struct bundle_block *block, struct archive *from,
		XXH3_state_t *hash, uint8_t *buffer)
{
	char digest[DIGEST_DIGITS + 1];
	la_ssize_t n;
	int r;

	XXH3_128bits_reset(hash);
	while ((n = archive_read_data(from, buffer, IO_BYTES)) > 0) {
		XXH3_128bits_update(hash, buffer, (size_t)n);
		r = fd < 0 ? 0 : kv_write_all(fd, buffer, (size_t)n);
		if (r < 0)
			return refuse(block, -r);
	}
	if (n < 0)
		return bundle_error("%s: %s", block->path,
				    archive_error_string(from));
	print_digest(XXH3_128bits_digest(hash), digest);
	return strcmp(digest, block->digest) == 0 ? 0
						  : not_taken(block, "damaged");
}

static int check_or_write(int fd, const struct bundle_block *block,
			  struct archive *from)
{
	XXH3_state_t *hash = XXH3_createState();
	uint8_t *buffer = malloc(IO_BYTES);
	int r = hash && buffer ? copy(fd, block, from, hash, buffer)
			       : bundle_error("no memory");

	XXH3_freeState(hash);
	free(buffer);
	return r;
}

/* Write it to the open staging file @fd, @staging, and seal it. */
static int fill(int space, int fd, const char *staging,
		const struct bundle_block *block, struct archive *from)
{
	const struct timespec times[] = {{.tv_nsec = UTIME_NOW}, block->mtime};
	int r = check_or_write(fd, block, from);

	if (r != 0)
		return r;
	if (futimens(fd, times) < 0)
		return bundle_error("%s: %s", block->path, strerror(errno));
	return renameat(space, staging, space, block->file) == 0
		       ? 0
		       : refuse(block, errno);
}

static bool is_there(int space, const struct bundle_block *block)
{
	_cleanup_(kv_closep) int fd =
		openat(space, block->file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	char had[DIGEST_DIGITS];

	return fd >= 0 &&
	       fgetxattr(fd, ATTR_DIGEST, had, sizeof(had)) == DIGEST_DIGITS &&
	       memcmp(had, block->digest, DIGEST_DIGITS) == 0;
}

int bundle_take_block(int space, const struct bundle_block *block,
		      struct archive *from)
{
	char staging[PATH_ROOM];
	int fd, r;

	if (space < 0 || is_there(space, block))
		return check_or_write(-1, block, from);
	snprintf(staging, sizeof(staging), "%.2s/.%s.bundle%ld", block->file,
		 block->file + 3, (long)getpid());
	staging[2] = '\0';
	if (mkdirat(space, staging, 0777) < 0 && errno != EEXIST)
		return bundle_error("%s: %s", block->path, strerror(errno));
	staging[2] = '/';
	fd = openat(space, staging, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
		    0666);
	if (fd < 0)
		return bundle_error("%s: %s", block->path, strerror(errno));
	r = fill(space, fd, staging, block, from);
	if (r != 0)
		unlinkat(space, staging, 0);
	close(fd);
	return r;
}
