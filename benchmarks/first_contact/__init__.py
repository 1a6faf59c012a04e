"""Attentions as strangers write them, each right, and each with twins that have one planted mistake: what does the checker say of them,
knowing nothing but the file and the name? ``python -m benchmarks.first_contact``; the table is ``benchmarks.first_contact.table.ENTRIES``.
"""
