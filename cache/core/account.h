/* SPDX-License-Identifier: Apache-2.0 */
/*
 * account.h - what each user holds of all that is finite.
 *
 * A user may hold as much of a thing as is still free: half of it when alone, a
 * third each when there are two.  The last part of it is for operators (root
 * and the user that the daemon runs as), who may take all.
 *
 * Threads: any.  No call blocks for longer than a look into a table.
 */
#ifndef KV_CACHE_CORE_ACCOUNT_H
#define KV_CACHE_CORE_ACCOUNT_H

#include "common/kv.h"

enum kv_finite {
	KV_FINITE_CONNECTIONS,
	KV_FINITE_REQUESTS,	/* without a reply yet, or with leases */
	KV_FINITE_LEASES,	/* blocks leased or being acquired */
	KV_FINITE_RESERVATIONS, /* blocks reserved to be saved */
	KV_FINITE_STAGINGS,
	KV_FINITE_MAPPED, /* bytes of them: their page tables take memory */
	KV_FINITE_DESCRIPTORS, /* waiting for who does not read */
	KV_FINITE_OPENS,       /* files and directories, by the mount */
	KV_FINITE_UPLOADS,     /* files being written, by the mount */
	KV_FINITE_MEMORY, /* bytes of the daemon's: of requests, replies that
				wait, listings, texts, heads of uploads */
	KV_FINITE_DRAM,	  /* bytes of slots being filled, leased, pinned */
	KV_FINITE_DIRTY, /* bytes of others that wait to be written; whether more
			    fit is asked of both together */
	KV_FINITE_PINNED,    /* bytes on SSD */
	KV_FINITE_SNAPSHOTS, /* blocks listed in them */
	KV_FINITE_SPACES,
	KV_FINITE_SEGMENTS, /* kept mapped though they are retired */
	KV_FINITE_INDEX,    /* bytes of it for spaces and snapshots */
	KV_FINITE_END
};

/* Of what goes by itself, or can be moved, a user may have so many times what
 * is left. */
#define KV_MORE_THAN_LEFT 3u

struct kv_accounts;
struct kv_account; /* one user's */

int kv_accounts_new(struct kv_accounts **ret_accounts); /* -ENOMEM */
void kv_accounts_free(struct kv_accounts *accounts);	/* takes NULL */
/* Uid 0 is a user as any other.  Before the first account. */
void kv_accounts_squash_root(struct kv_accounts *accounts);
/* All users together may take at most @bytes of KV_FINITE_MEMORY.  Before the
 * first account. */
void kv_accounts_limit_memory(struct kv_accounts *accounts, uint64_t bytes);
/* Whether @uid has no share, but all. */
bool kv_accounts_operator(const struct kv_accounts *accounts, uint32_t uid);

/* The account of @uid, held; NULL: out of memory. */
struct kv_account *kv_account_get(struct kv_accounts *accounts, uint32_t uid);
uint32_t kv_account_uid(const struct kv_account *account);
struct kv_account *kv_account_hold(struct kv_account *account);
/* All that was charged by the holder is given back before.  Takes NULL. */
void kv_account_put(struct kv_account *account);

/* Take @n of @what: 0, or -ENOLCK beyond the user's share.  NULL is no user's
 * account and has no bounds. */
int kv_account_charge(struct kv_account *account, enum kv_finite what,
		      uint64_t n);
void kv_account_credit(struct kv_account *account, enum kv_finite what,
		       uint64_t n);

/* In two steps, for what has another @total: whether the user may take @n more,
 * and, unless he is an operator, would have @spare of his share left; and
 * taking it, which also may be done without asking. */
bool kv_account_fits(struct kv_account *account, enum kv_finite what,
		     uint64_t total, uint64_t n, uint64_t spare);
void kv_account_take(struct kv_account *account, enum kv_finite what,
		     uint64_t n);

/* How much of @what the user holds. */
uint64_t kv_account_held(struct kv_account *account, enum kv_finite what);

/* Before a space is made, or removed through the mount: 0, or -EAGAIN if the
 * user has done so too often for now. */
int kv_account_pace(struct kv_account *account);

/* How much there is of @what for all; 0: that is not fixed. */
uint64_t kv_finite_total(enum kv_finite what);
/* How much of it all users hold. */
uint64_t kv_accounts_used(struct kv_accounts *accounts, enum kv_finite what);

#endif
