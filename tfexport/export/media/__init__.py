"""The preprocessing of a folder of transformers, written as data and compared with the original."""
