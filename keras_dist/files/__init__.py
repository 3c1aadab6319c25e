"""Files: tensors, drafts, locks and buckets."""
