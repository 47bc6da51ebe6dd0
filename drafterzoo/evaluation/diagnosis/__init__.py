"""Why drafts are rejected: by what drafter and target were sure of, and what second thoughts recover."""
