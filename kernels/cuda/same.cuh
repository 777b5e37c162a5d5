/* SPDX-License-Identifier: Apache-2.0 */
/*
 * same.cuh - check that a declaration of driver.h is binary compatible with that
 * of CUDA's own header.
 */
#ifndef KV_KERNELS_CUDA_SAME_CUH
#define KV_KERNELS_CUDA_SAME_CUH

#include <stddef.h>

/* Calls with equal numbers and sizes of parameters and results. */
template <typename A, typename B> struct same_call {
	static constexpr bool value = false;
};
template <typename R, typename... P, typename S, typename... Q>
struct same_call<R (*)(P...), S (*)(Q...)> {
	static constexpr bool value = [] {
		if (sizeof...(P) != sizeof...(Q) || sizeof(R) != sizeof(S))
			return false;
		constexpr size_t ours[] = {sizeof(R), sizeof(P)...};
		constexpr size_t theirs[] = {sizeof(S), sizeof(Q)...};
		for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
			if (i < sizeof(theirs) / sizeof(theirs[0]) &&
			    ours[i] != theirs[i])
				return false;
		return true;
	}();
};

#endif
