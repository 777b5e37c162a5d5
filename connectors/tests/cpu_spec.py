# SPDX-License-Identifier: Apache-2.0
"""cpu_spec - vLLM's tiering on a machine without a GPU, for the tests.  Scheduler, manager and
tiers are vLLM's.  Only the copies between KV cache and CPU buffer are made here, because this
release of vLLM copies from GPUs only."""
import torch
from vllm.v1.kv_offload.base import OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class PlainWorker(OffloadingWorker):
    def __init__(self, caches, region, row):
        self.rows = torch.frombuffer(region.mmap_obj, dtype=torch.int8).view(-1, row)
        self.tensors = [entry.tensor.view(torch.int8) for entry in caches.tensors]
        self.done = []

    def copy(self, id, gpu, cpu, store):
        # There is one group, and a chunk is one block: the tensors' pages, end to end.
        for block, chunk in zip(gpu.block_ids, cpu.block_ids):
            at = 0
            for tensor in self.tensors:
                page = tensor[int(block)].view(-1)
                row = self.rows[int(chunk)][at:at + page.numel()]
                (row if store else page).copy_(page if store else row)
                at += page.numel()
        self.done.append(TransferResult(id, True))
        return True

    def submit_store(self, job_id, src_spec, dst_spec):
        return self.copy(job_id, src_spec, dst_spec, True)

    def submit_load(self, job_id, src_spec, dst_spec):
        return self.copy(job_id, dst_spec, src_spec, False)

    def get_finished(self):
        done, self.done = self.done, []
        return done

    def wait(self, job_ids):
        pass


class CpuTieringSpec(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if self._worker is None:
            region = SharedOffloadRegion(self._engine_id, self.num_chunks, 0, self.kv_bytes_per_chunk,
                                         self.cpu_page_size_per_worker)
            self._worker = PlainWorker(kv_caches, region, self.kv_bytes_per_chunk)
        return self._worker
