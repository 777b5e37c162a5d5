/* SPDX-License-Identifier: Apache-2.0 */
/*
 * account.h - the fair share of each user in all finite resources.
 *
 * A user may hold as much of a resource as is still free: half of it when
 * alone, a third each when there are two.  The last 1/16 is for operators (root
 * and the daemon's user), who may take everything.
 *
 * Threads: any.  No call blocks for longer than a table look-up.
 */
#ifndef KV_CACHE_CORE_ACCOUNT_H
#define KV_CACHE_CORE_ACCOUNT_H

#include "common/kv.h"

enum kv_finite {
	KV_FINITE_CONNECTIONS,
	KV_FINITE_REQUESTS,	/* requests without a reply, or with leases */
	KV_FINITE_LEASES,	/* blocks that clients lease or acquire */
	KV_FINITE_RESERVATIONS, /* blocks that clients have reserved to save */
	KV_FINITE_STAGINGS,
	KV_FINITE_MAPPED, /* bytes of staging memory that the daemon maps */
	KV_FINITE_DESCRIPTORS, /* descriptors sent, but not yet received */
	KV_FINITE_OPENS,       /* opened files and directories of the mount */
	KV_FINITE_UPLOADS,     /* files being written through the mount */
	/* bytes of requests, queued replies, listings, buffered uploads */
	KV_FINITE_MEMORY,
	KV_FINITE_DRAM, /* bytes of slots being filled, leased or pinned */
	/* bytes of other slots that wait to be written to SSD; one limit
	 * applies to the sum of KV_FINITE_DRAM and KV_FINITE_DIRTY */
	KV_FINITE_DIRTY,
	KV_FINITE_PINNED,    /* bytes of pinned blocks on SSD */
	KV_FINITE_SNAPSHOTS, /* blocks listed in snapshots */
	KV_FINITE_SPACES,
	KV_FINITE_SEGMENTS, /* retired segments that clients still map */
	KV_FINITE_INDEX,    /* bytes of the index for spaces and snapshots */
	KV_FINITE_END
};

/* A user may hold as much of a resource as is free, and this many times as much
 * of a resource that becomes free by itself (KV_FINITE_DIRTY, segments). */
#define KV_MORE_THAN_LEFT 3u

struct kv_accounts;
struct kv_account; /* account of one user */

int kv_accounts_new(struct kv_accounts **ret_accounts); /* -ENOMEM */
void kv_accounts_free(struct kv_accounts *accounts);	/* takes NULL */
/* With @squash uid 0 is an ordinary user.  Limit KV_FINITE_MEMORY of all users
 * together to @memory bytes.  Call before kv_account_get. */
void kv_accounts_set(struct kv_accounts *accounts, bool squash,
		     uint64_t memory);
/* Return whether @uid is an operator. */
bool kv_accounts_operator(const struct kv_accounts *accounts, uint32_t uid);

/* Find or create the account of @uid and hold it; NULL: out of memory. */
struct kv_account *kv_account_get(struct kv_accounts *accounts, uint32_t uid);
uint32_t kv_account_uid(const struct kv_account *account);
struct kv_account *kv_account_hold(struct kv_account *account);
/* Release the account, after crediting all charges.  Takes NULL. */
void kv_account_put(struct kv_account *account);

/*
 * Charge @n of @what.  A NULL account has no limits.
 *   -ENOLCK  beyond the user's share
 */
int kv_account_charge(struct kv_account *account, enum kv_finite what,
		      uint64_t n);
void kv_account_credit(struct kv_account *account, enum kv_finite what,
		       uint64_t n);

/*
 * Check and charge in two steps, for a resource whose total is @total.
 * kv_account_fits returns whether the user may take @n more and would then have
 * @spare of its share left, which operators need not have.  kv_account_take
 * charges without a check.
 */
bool kv_account_fits(struct kv_account *account, enum kv_finite what,
		     uint64_t total, uint64_t n, uint64_t spare);
void kv_account_take(struct kv_account *account, enum kv_finite what,
		     uint64_t n);

/* Return how much of @what the user holds. */
uint64_t kv_account_held(struct kv_account *account, enum kv_finite what);

/* Call before a space is created, or removed through the mount.  Return -EAGAIN
 * if the user does so too often. */
int kv_account_pace(struct kv_account *account);

/* Return the total of @what; 0: it depends on the configuration. */
uint64_t kv_finite_total(enum kv_finite what);
/* Return how much of @what all users hold. */
uint64_t kv_accounts_used(struct kv_accounts *accounts, enum kv_finite what);

#endif
