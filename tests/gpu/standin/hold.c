/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hold.c - the lock of a context, as in some drivers: a synchronising call
 * holds the lock while it waits, and other calls wait for the lock.
 *
 * OWNS      the record of the holders.
 *
 * INVARIANTS
 *   (1) Calls that wait for a stream or an event do not hold the lock.
 *
 * LOCKING   big_lock.
 */
#include "tests/gpu/standin/standin.h"

void context_pass(CUcontext ctx)
{
	pthread_mutex_lock(&big_lock);
	while (ctx->held)
		pthread_cond_wait(&changed, &big_lock);
	pthread_mutex_unlock(&big_lock);
}

void context_hold(enum sync sync, CUcontext *ret_held)
{
	CUcontext ctx = current_context();

	if (ctx == NULL || (settings.syncs & 1u << sync) == 0)
		return;
	pthread_mutex_lock(&big_lock);
	while (ctx->held)
		pthread_cond_wait(&changed, &big_lock);
	ctx->held = true;
	wait_for_context_locked(ctx);
	pthread_mutex_unlock(&big_lock);
	*ret_held = ctx;
}

void context_release(CUcontext *held)
{
	if (*held == NULL)
		return;
	pthread_mutex_lock(&big_lock);
	(*held)->held = false;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&big_lock);
}
