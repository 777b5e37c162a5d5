/* SPDX-License-Identifier: Apache-2.0 */
/*
 * account.c - a table of users, and the resources that each holds.
 *
 * OWNS      every kv_account.
 *
 * INVARIANTS
 *   (1) used[] is the sum of held[] over all accounts, and at most the total.
 *   (2) An account is in its bucket as long as it is held, or its user may not
 *       create SPACES_AT_ONCE spaces now.
 *   (3) After a charge, a user that is no operator holds at most as much as
 *       remains free for ordinary users; of DIRTY, KV_MORE_THAN_LEFT times as
 *       much.
 *
 * LOCKING   accounts->lock, a leaf, guards every field not marked constant.
 */
#include <sys/queue.h>

#include "cache/core/account.h"
#include "common/rate.h"

#define BUCKETS 256u
#define OPERATORS_PART 16u /* operators have 1/16 of each resource */
/* Ids of spaces are never reused: a user may create SPACES_AT_ONCE spaces in a
 * burst, and then one per second. */
#define SPACES_AT_ONCE 1024

struct kv_account {
	struct kv_accounts *accounts; /* constant */
	uint32_t uid;		      /* constant */
	unsigned refs;
	uint64_t held[KV_FINITE_END];
	struct kv_bucket spaces; /* spaces that the user may create */
	LIST_ENTRY(kv_account) bucket;
};

struct kv_accounts {
	pthread_mutex_t lock;
	uint32_t own;	 /* constant: uid of the daemon's user */
	bool squash;	 /* constant: uid 0 is no operator */
	uint64_t memory; /* constant: total of KV_FINITE_MEMORY */
	uint64_t used[KV_FINITE_END];
	LIST_HEAD(, kv_account) buckets[BUCKETS]; /* hash table by uid */
};

static const uint64_t totals[KV_FINITE_END] = {
	[KV_FINITE_CONNECTIONS] = 1024,
	[KV_FINITE_REQUESTS] = 1 << 16,
	[KV_FINITE_LEASES] = 1 << 20,
	[KV_FINITE_RESERVATIONS] = 1 << 16,
	[KV_FINITE_STAGINGS] = 4096,
	[KV_FINITE_DESCRIPTORS] = 4096,
	[KV_FINITE_OPENS] = 1 << 16,
	[KV_FINITE_UPLOADS] = 4096,
	[KV_FINITE_MEMORY] = UINT64_C(512) << 20,
	[KV_FINITE_SPACES] = 1 << 16,
};

int kv_accounts_new(struct kv_accounts **ret_accounts)
{
	struct kv_accounts *accounts = calloc(1, sizeof(*accounts));

	if (!accounts)
		return -ENOMEM;
	accounts->own = geteuid();
	accounts->memory = totals[KV_FINITE_MEMORY];
	pthread_mutex_init(&accounts->lock, NULL);
	*ret_accounts = accounts;
	return 0;
}

void kv_accounts_free(struct kv_accounts *accounts)
{
	struct kv_account *account;

	if (!accounts)
		return;
	for (unsigned i = 0; i < BUCKETS; i++)
		while ((account = LIST_FIRST(&accounts->buckets[i]))) {
			LIST_REMOVE(account, bucket);
			free(account);
		}
	pthread_mutex_destroy(&accounts->lock);
	free(accounts);
}

void kv_accounts_set(struct kv_accounts *accounts, bool squash, uint64_t memory)
{
	accounts->squash = squash;
	accounts->memory = KV_MIN(memory, totals[KV_FINITE_MEMORY]);
}

bool kv_accounts_operator(const struct kv_accounts *accounts, uint32_t uid)
{
	return uid == 0 ? !accounts->squash : uid == accounts->own;
}

static bool is_operator(const struct kv_account *account)
{
	return kv_accounts_operator(account->accounts, account->uid);
}

struct kv_account *kv_account_get(struct kv_accounts *accounts, uint32_t uid)
{
	const unsigned at = uid % BUCKETS;
	struct kv_account *account;

	pthread_mutex_lock(&accounts->lock);
	LIST_FOREACH(account, &accounts->buckets[at], bucket)
		if (account->uid == uid)
			break;
	if (!account && (account = calloc(1, sizeof(*account)))) {
		account->accounts = accounts;
		account->uid = uid;
		LIST_INSERT_HEAD(&accounts->buckets[at], account, bucket);
	}
	if (account)
		account->refs++;
	pthread_mutex_unlock(&accounts->lock);
	return account;
}

uint32_t kv_account_uid(const struct kv_account *account)
{
	return account->uid;
}

struct kv_account *kv_account_hold(struct kv_account *account)
{
	if (!account)
		return NULL;
	pthread_mutex_lock(&account->accounts->lock);
	account->refs++;
	pthread_mutex_unlock(&account->accounts->lock);
	return account;
}

void kv_account_put(struct kv_account *account)
{
	struct kv_accounts *accounts;
	struct kv_account *next;

	if (!account)
		return;
	accounts = account->accounts;
	pthread_mutex_lock(&accounts->lock);
	account->refs--;
	/* Free the accounts in the bucket that are neither held nor in debt. */
	account = LIST_FIRST(&accounts->buckets[account->uid % BUCKETS]);
	for (; account; account = next) {
		next = LIST_NEXT(account, bucket);
		(void)kv_bucket_fill(&account->spaces, 1, SPACES_AT_ONCE);
		if (account->refs > 0 ||
		    account->spaces.credit < SPACES_AT_ONCE)
			continue;
		LIST_REMOVE(account, bucket);
		free(account);
	}
	pthread_mutex_unlock(&accounts->lock);
}

static uint64_t counted(const uint64_t n[], enum kv_finite what)
{
	return n[what] + (what == KV_FINITE_DIRTY ? n[KV_FINITE_DRAM] : 0);
}

/* Return whether @account may take @n more of @what and keep @spare unused. */
static bool fits_locked(const struct kv_account *account, enum kv_finite what,
			uint64_t total, uint64_t n, uint64_t spare)
{
	const struct kv_accounts *accounts = account->accounts;
	uint64_t used = counted(accounts->used, what), part;

	kv_assert_locked(&account->accounts->lock);
	if (used > total || n > total - used)
		return false;
	if (is_operator(account))
		return true;
	part = total / OPERATORS_PART;
	n += spare;
	return used + n + part <= total &&
	       counted(account->held, what) + n <=
		       (what == KV_FINITE_DIRTY ? KV_MORE_THAN_LEFT : 1) *
			       (total - part - used - n);
}

int kv_account_charge(struct kv_account *account, enum kv_finite what,
		      uint64_t n)
{
	uint64_t total = totals[what];
	int r = -ENOLCK;

	if (!account)
		return 0;
	if (what == KV_FINITE_MEMORY)
		total = account->accounts->memory;
	pthread_mutex_lock(&account->accounts->lock);
	if (fits_locked(account, what, total, n, 0)) {
		account->held[what] += n;
		account->accounts->used[what] += n;
		r = 0;
	}
	pthread_mutex_unlock(&account->accounts->lock);
	return r;
}

bool kv_account_fits(struct kv_account *account, enum kv_finite what,
		     uint64_t total, uint64_t n, uint64_t spare)
{
	bool fits;

	if (!account)
		return true;
	pthread_mutex_lock(&account->accounts->lock);
	fits = fits_locked(account, what, total, n, spare);
	pthread_mutex_unlock(&account->accounts->lock);
	return fits;
}

void kv_account_take(struct kv_account *account, enum kv_finite what,
		     uint64_t n)
{
	if (!account)
		return;
	pthread_mutex_lock(&account->accounts->lock);
	account->held[what] += n;
	account->accounts->used[what] += n;
	pthread_mutex_unlock(&account->accounts->lock);
}

uint64_t kv_account_held(struct kv_account *account, enum kv_finite what)
{
	uint64_t held;

	if (!account)
		return 0;
	pthread_mutex_lock(&account->accounts->lock);
	held = account->held[what];
	pthread_mutex_unlock(&account->accounts->lock);
	return held;
}

int kv_account_pace(struct kv_account *account)
{
	int r = 0;

	if (!account || is_operator(account))
		return 0;
	pthread_mutex_lock(&account->accounts->lock);
	(void)kv_bucket_fill(&account->spaces, 1, SPACES_AT_ONCE);
	if (account->spaces.credit < 1)
		r = -EAGAIN;
	else
		account->spaces.credit--;
	pthread_mutex_unlock(&account->accounts->lock);
	return r;
}

void kv_account_credit(struct kv_account *account, enum kv_finite what,
		       uint64_t n)
{
	kv_account_take(account, what, -n);
}

uint64_t kv_finite_total(enum kv_finite what)
{
	return totals[what];
}

uint64_t kv_accounts_used(struct kv_accounts *accounts, enum kv_finite what)
{
	uint64_t used;

	pthread_mutex_lock(&accounts->lock);
	used = accounts->used[what];
	pthread_mutex_unlock(&accounts->lock);
	return used;
}
